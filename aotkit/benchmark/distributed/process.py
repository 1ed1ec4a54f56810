"""One rank of `bench distributed`: what it builds, runs and times for one wrapper; rank 0 writes what all found."""

import json
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import aotkit
from aotkit.benchmark.distributed.model import Llama, batch, whole
from aotkit.benchmark.distributed.wrappers import WRAPPERS, TrainingStep
from aotkit.benchmark.report import in_words

EAGER, TORCH_COMPILE, OURS = WAYS = ("eager", "torch.compile", "aotkit")
PATIENCE = timedelta(seconds=300)  # of ranks with each other
ROUNDS = 5, 200  # fewest and most


@dataclass(frozen=True)
class Sizes:
    """Of the model, and of the batch of each rank."""

    width: int
    heads: int
    layers: int
    words: int
    rows: int
    length: int
    dtype: torch.dtype


SIZES = {
    "cpu": Sizes(64, 4, 2, 128, 2, 32, torch.float32),
    "cuda": Sizes(2048, 16, 2, 32000, 4, 1024, torch.bfloat16),
}


@dataclass
class Built:
    """A model that was compiled in one way, and run once."""

    model: Llama
    step: TrainingStep
    first: float  # seconds
    verdict: str


def run_rank(rank: int, ranks: int, name: str, ways: Sequence[str], device: str, seconds: float, folder: str) -> None:
    """Everything for one wrapper."""
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend, store = "nccl" if device == "cuda" else "gloo", f"file://{folder}/store"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    warnings.simplefilter("ignore")
    sizes = SIZES[device]
    batches = [batch(number, sizes.rows, sizes.length, sizes.words, device) for number in range(ranks)]
    found: dict[str, dict[str, Any]] = {}
    built: dict[str, Built] = {}
    for way in ways:
        try:
            built[way] = _built(name, way, device, batches)
            problem = None
        except Exception as e:
            problem = f"rank {rank}: {in_words(e)}"
        problems = [p for p in _of_all(problem) if p]
        found[way] = {"problem": "; ".join(problems) or None}
        if problems:
            built.pop(way, None)
    wanted = _gradients(built[EAGER].model) if EAGER in built else {}
    for way, one in built.items():
        found[way] |= {
            "first": max(_of_all(one.first)),
            "verdict": "; ".join(dict.fromkeys(v for v in _of_all(one.verdict) if v)),
            "distance": max(_of_all(_distance(_gradients(one.model), wanted))),
        }
    for way, times in _times(built, batches, device, seconds).items():
        found[way]["step"] = statistics.median(times)
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")
    with suppress(RuntimeError):  # the others may be gone
        dist.destroy_process_group()


def _compiler(way: str) -> Callable[[Any], Any]:
    return {EAGER: lambda module: module, TORCH_COMPILE: torch.compile, OURS: aotkit.compile}[way]  # type: ignore[return-value]


def _built(name: str, way: str, device: str, batches: Sequence[Tensor]) -> Built:
    sizes = SIZES[device]
    torch.manual_seed(0)
    with torch.device(device):
        model = Llama(sizes.width, sizes.heads, sizes.layers, sizes.words).to(sizes.dtype)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    step = WRAPPERS[name](model, _compiler(way), mesh)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", aotkit.UndecidedWarning)
        step(batches)
    _finish(device)
    undecided = any(isinstance(w.message, aotkit.UndecidedWarning) for w in told)
    return Built(model, step, time.perf_counter() - start, ("undecided" if undecided else "ok") if way == OURS else "")


def _gradients(model: Llama) -> Mapping[str, Tensor]:
    """Over all ranks: those that this one has."""
    return {n: whole(p.grad).float() for n, p in model.named_parameters() if p.grad is not None}


def _distance(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest distance of a gradient from eager's, in sizes of that."""
    pairs = [(found[n], g) for n, g in wanted.items()] if found.keys() == wanted.keys() else []
    return max((float((f - w).norm() / w.norm()) for f, w in pairs), default=float("inf"))


def _times(
    built: Mapping[str, Built], batches: Sequence[Tensor], device: str, seconds: float
) -> Mapping[str, Sequence[float]]:
    """Seconds of steps, one of each way in each round: those of the slowest rank."""
    times: dict[str, list[float]] = {way: [] for way in built}
    for _ in range(2):  # the second step of a way may compile, too
        lasted = sum(_time(one, batches, device) for one in built.values())
    rounds = max(_of_all(min(max(int(seconds / max(lasted, 1e-6)), ROUNDS[0]), ROUNDS[1])))
    for _ in range(rounds):
        for way, one in built.items():
            times[way].append(_time(one, batches, device))
    everywhere = _of_all(times)
    return {way: [max(each) for each in zip(*(rank[way] for rank in everywhere), strict=True)] for way in built}


def _time(one: Built, batches: Sequence[Tensor], device: str) -> float:
    one.model.zero_grad(set_to_none=True)
    _finish(device)
    dist.barrier()
    start = time.perf_counter()
    one.step(batches)
    _finish(device)
    return time.perf_counter() - start


def _of_all(value: Any) -> list[Any]:
    """What each rank has, by rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()

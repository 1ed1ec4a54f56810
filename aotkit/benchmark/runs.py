"""`bench`: eager against backends and partitioners, in time and memory."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from aotkit.benchmark.table import BenchReport, Row
from aotkit.benchmark.timing import Tell, interleave, silent
from aotkit.compiler import Capture, compile
from aotkit.inspection import saved_bytes
from aotkit.interfaces import Partitioner
from aotkit.registry import BackendSpec, backend_status, name_of, partitioner_status
from aotkit.torch_private.dispatch import pytree
from aotkit.tuning import Workload, in_one_line

NOT_TIMED = {"print"}  # it prints the graph instead of compiling it


def bench(
    fn: Callable[..., Any],
    /,
    *args: Any,
    backends: Sequence[BackendSpec] | None = None,
    partitions: Sequence[str | Partitioner] | None = None,
    seconds: float = 10.0,
    capture: Capture = "auto",
    progress: Tell = silent,
    **kwargs: Any,
) -> BenchReport:
    """Time forward and backward of `fn(*args, **kwargs)`: eager, and each backend with each partitioner.

    All variants run interleaved in this process, each checked against eager first. It works on copies of the
    arguments, and of `fn` if that is a module; what a plain function changes outside of those stays changed.

    Args:
        backends: names or objects; None: all that are registered, except `print`.
        partitions: names or partitioners; None: all that are registered.
        seconds: how long to measure altogether, after compiling and warming up; at least seven rounds are played.
        capture: as for `compile`.
        progress: called with a line of text before each thing that takes long.
    """
    workload = _Workload(fn, args, kwargs)
    name = getattr(fn, "__qualname__", type(fn).__name__)
    rows = [Row("eager", "", saved_bytes=workload.saved_in_eager())]
    steps = {0: workload.step(workload.fn)}
    pairs = _pairs(backends, partitions)
    for i, (backend, partition, reason) in enumerate(pairs, 1):
        row = Row(name_of(backend), name_of(partition) if partition else "")
        rows.append(row)
        if reason is not None:
            row.status, row.check = "unavailable", reason
            continue
        progress(f"{name}: compiling {row.label} ({i} of {len(pairs)})")
        call = workload.compiled(row, backend, partition, capture)
        if call is not None:
            steps[i] = workload.step(call)
    progress(f"{name}: timing {len(steps)} variants for about {seconds:.0f} s")
    times, failed = interleave(steps, seconds, cuda=workload.cuda)
    workload.restore()
    if 0 in failed:
        raise failed[0]
    for i, row in enumerate(rows):
        row.phases = times.get(i, {})
        if i in failed:
            row.status, row.check = "failed", in_one_line(failed[i])
    return BenchReport(name, _environment(workload.cuda), rows)


def _pairs(backends: Sequence[Any] | None, partitions: Sequence[Any] | None) -> list[tuple[Any, Any, str | None]]:
    """(backend, partitioner, why it cannot run here); one for a backend or partitioner that can run with none."""
    if partitions is None:
        partitions = [name for name, reason in partitioner_status().items() if reason is None]
    pairs: list[tuple[Any, Any, str | None]] = []
    reasons = {name: reason for name, reason in backend_status().items() if name not in NOT_TIMED}
    for backend in [*reasons] if backends is None else backends:
        reason = reasons.get(backend) if isinstance(backend, str) else None
        pairs += [(backend, None, reason)] if reason else [(backend, p, None) for p in partitions]
    return pairs


class _Workload(Workload):
    """A function with inputs of its own, which its variants share."""

    def compiled(self, row: Row, backend: Any, partition: Any, capture: Capture) -> Callable[..., Any] | None:
        """Compile and check one variant; fills `row`. None if that failed."""
        self.prepare()
        try:
            compiled: Any = compile(self.fn, backend=backend, partition=partition, capture=capture)
            start = time.perf_counter()
            self.call(compiled)
            row.compile_seconds = time.perf_counter() - start
            row.status = row.check = "ok"
            how = self.call(compiled.explain)
            row.way = how.way
            if how.eager is None:
                row.saved_bytes = sum(map(saved_bytes, how.all_graphs))
            else:
                row.status, row.check = "eager", f"runs eagerly: {how.eager}"
        except Exception as e:
            row.status, row.check = "failed", in_one_line(e)
            return None
        return compiled  # type: ignore[no-any-return]

    def saved_in_eager(self) -> int:
        """Bytes of the storages that eager's autograd graph keeps, other than inputs, parameters and outputs."""
        saved: dict[int, Tensor] = {}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.layout is torch.strided:
                saved[_storage(tensor)] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = self.call(self.fn)
        state = self.fn.state_dict().values() if isinstance(self.fn, nn.Module) else ()
        held = [*pytree.tree_leaves(outputs), *self.inputs, *self.leaves, *state]
        alive = {_storage(t) for t in held if isinstance(t, Tensor) and t.layout is torch.strided}
        return sum(t.untyped_storage().nbytes() for storage, t in saved.items() if storage not in alive)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _environment(cuda: bool) -> dict[str, Any]:
    processor = torch.cuda.get_device_name() if cuda else f"{os.cpu_count()}-core CPU"
    threads = f"{torch.get_num_threads()} threads"
    return {"torch": f"torch {torch.__version__}", "processor": processor, "threads": threads}

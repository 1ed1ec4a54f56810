"""The rows of `python -m aotkit bench memory`, and the models that they train."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from aotkit.benchmark import transformers_models as hf
from aotkit.benchmark.memory_report import EAGER, TORCH_COMPILE
from aotkit.benchmark.overhead_variants import with_code_of_its_own
from aotkit.benchmark.transformers_models import Model
from aotkit.compiler import compile
from aotkit.interfaces import Partitioner
from aotkit.random import random_state
from aotkit.torch_private.aotautograd import memory_budget

TENTHS = tuple(n / 10 for n in range(10, 0, -1))
HUNDREDTHS = tuple(n / 100 for n in range(100, 0, -1))


@dataclass(frozen=True)
class Variant:
    """One way to train a model.

    Attributes:
        compile: from the module to what is called in its place.
        setting: what has to be in force while that compiles: during its first step.
    """

    compile: Callable[[nn.Module], Callable[..., Tensor]]
    setting: Callable[[], AbstractContextManager[Any]] = nullcontext


def variants() -> dict[str, Variant]:
    """Name of a row -> variant: eager, torch.compile under its memory budgets, Inductor with partitioners of ours.

    A number is a budget: a fraction of what there would be without one. Peaks are there in steps of 0.01.
    """
    from aotkit.partitioners.nx_min_cut import budget, peak

    ours: dict[str, str | Partitioner] = {"min_cut": "min_cut", "nx_min_cut": "nx_min_cut"}
    ours |= {f"nx_min_cut budget {f}": budget(f) for f in TENTHS}
    ours |= {f"nx_min_cut peak {f}": peak(f) for f in HUNDREDTHS}
    return {
        EAGER: Variant(lambda module: module),
        **{f"{TORCH_COMPILE} {f}": Variant(_torch_compile, partial(memory_budget, f)) for f in (*TENTHS, 0.0)},
        **{name: Variant(partial(_aotkit, partition=partition)) for name, partition in ours.items()},
    }


def _torch_compile(module: nn.Module) -> Callable[..., Tensor]:
    return torch.compile(with_code_of_its_own(lambda *inputs: module(*inputs)))


def _aotkit(module: nn.Module, partition: str | Partitioner) -> Callable[..., Tensor]:
    return compile(module, backend="inductor", partition=partition, check=False)


def build(name: str, device: str) -> Model:
    """A model of `MODELS[device]` in training mode; the same values every time.

    On a GPU it is in bfloat16. On a CPU, matrix products of that take scratch memory, so it is in float32.

    Raises:
        ImportError: transformers is missing or too old for it.
    """
    with random_state(), torch.device(device):
        torch.manual_seed(0)
        module, inputs = MODELS[device][name]()
        return module.to(torch.bfloat16 if device == "cuda" else torch.float32).train(), inputs


def _language_model(make: Callable[..., Any], **sizes: int) -> Model:
    """With random weights and tokens: a GPU multiplies zeros faster, and gathers the same row faster."""
    module, inputs = make(**sizes)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02)
            else:
                parameter.fill_(float(name.endswith("weight")))  # of a normalisation; else a bias
    return module, [torch.randint_like(x, module.model.config.vocab_size) for x in inputs]


SMALL = {"layers": 2, "heads": 2, "width": 64, "batch": 2, "length": 128}
# On a GPU of real sizes; on a CPU the same in small.
MODELS: dict[str, dict[str, Callable[[], Model]]] = {
    "cuda": {"gpt2": partial(_language_model, hf.gpt2), "llama": partial(_language_model, hf.llama)},
    "cpu": {"gpt2": partial(_language_model, hf.gpt2, **SMALL), "llama": partial(_language_model, hf.llama, **SMALL)},
}

"""The rivals of `aotkit bench overhead`, each set up as its users would, and the check against eager."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aotkit.benchmark.overhead.workloads import NO_GRAD, Workload
from aotkit.benchmark.report import in_a_line
from aotkit.benchmark.rivals import EAGER, TORCH_COMPILE, torch_compiled
from aotkit.compiler import compile
from aotkit.registry import backend_status
from aotkit.torch_private.inductor import inductor_for_functorch

CHECKED_CALLS = 3  # Inductor replays a CUDA graph from the third on
TOLERANCE = 1e-4  # of the largest value of each tensor


class Calls(NamedTuple):
    """How to call a variant: with gradients, and under `no_grad`."""

    grad: Callable[..., Tensor]
    no_grad: Callable[..., Tensor]
    results_wait: bool = True  # backward may run after further calls; else it cannot be timed without them


Variants = Mapping[str, Callable[[Workload], Calls]]
Results = Mapping[str, Tensor | None]  # "result", "gradient 0", ...


def variants(device: str) -> Variants:
    """How to set up each rival, by name; eager first.

    Where Inductor cannot run, aot_function and aotkit run their graphs as they are, and torch.compile is left out.
    """
    found: dict[str, Callable[[Workload], Calls]] = {EAGER: lambda workload: Calls(workload.fn, workload.fn)}
    if backend_status()["inductor"] is not None:
        aot_function = partial(_aot_function, options=_nop_for_functorch)
        return found | {"aot_function": aot_function, "aotkit": partial(_aotkit, backend="nop")}
    found["aot_function"] = partial(_aot_function, options=inductor_for_functorch)
    found[TORCH_COMPILE] = _torch_compile
    found["aotkit"] = partial(_aotkit, backend="inductor")
    if device == "cuda":
        found["torch.compile reduce-overhead"] = _cuda_graphs
        found["aotkit inductor_cpp"] = partial(_aotkit, backend="inductor_cpp")
    return found


def _aotkit(workload: Workload, backend: str) -> Calls:
    compiled = compile(workload.fn, backend=backend, partition="min_cut")
    return Calls(compiled, compiled)


def _torch_compile(workload: Workload) -> Calls:
    compiled = torch_compiled(workload.fn)
    return Calls(compiled, compiled)


def _cuda_graphs(workload: Workload) -> Calls:
    compiled = torch_compiled(workload.fn, mode="reduce-overhead")

    def call(*args: Tensor) -> Tensor:
        # What earlier calls returned may be overwritten.
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return compiled(*args)

    return Calls(call, call, results_wait=False)


def _nop_for_functorch() -> dict[str, Any]:
    from functorch.compile import min_cut_rematerialization_partition, nop

    return {"fw_compiler": nop, "partition_fn": min_cut_rematerialization_partition}


def _aot_function(workload: Workload, options: Callable[[], dict[str, Any]]) -> Calls:
    """It compiles once and for all, so its user keeps one for each shape, and another for `no_grad`."""
    from functorch.compile import aot_function, aot_module

    wrap = aot_module if isinstance(workload.fn, nn.Module) else aot_function
    keywords = options()

    def by_shape() -> Callable[..., Tensor]:
        compiled = {call[0].shape: wrap(workload.fn, **keywords) for call in workload.calls}
        if len(compiled) == 1:
            return next(iter(compiled.values()))  # type: ignore[no-any-return]
        return lambda *args: compiled[args[0].shape](*args)

    return Calls(by_shape(), by_shape())


class Reference:
    """What eager gives: result and gradients of each call."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        generator = torch.Generator().manual_seed(1)
        results = [workload.fn(*call) for call in workload.calls]
        self.cotangents = [torch.randn(r.shape, generator=generator, dtype=r.dtype).to(r.device) for r in results]
        self._expected = [self._results(workload.fn, i) for i in range(len(workload.calls))]

    def difference(self, calls: Calls) -> str | None:
        """What differs of result and gradients in any of the first few calls; None if nothing does."""
        for _ in range(CHECKED_CALLS):
            for i, expected in enumerate(self._expected):
                # At once, since the next call may overwrite the results of this one.
                problem = _difference(self._results(calls.grad, i), expected)
                if problem is None and NO_GRAD in self._workload.phases:
                    with torch.no_grad():
                        result = calls.no_grad(*self._workload.calls[i])
                    problem = _difference({"result": result}, expected, " under no_grad")
                if problem is not None:
                    return problem
        return None

    def _results(self, fn: Callable[..., Tensor], call: int) -> Results:
        leaves = self._workload.leaves
        result = fn(*self._workload.calls[call])
        result.backward(self.cotangents[call])  # type: ignore[no-untyped-call]
        gradients = [leaf.grad for leaf in leaves]
        clear(leaves)
        return {"result": result.detach(), **{f"gradient {i}": g for i, g in enumerate(gradients)}}


def clear(leaves: Sequence[Tensor]) -> None:
    for leaf in leaves:
        leaf.grad = None


def _difference(found: Results, expected: Results, where: str = "") -> str | None:
    for what, tensor in found.items():
        wanted = expected[what]
        if tensor is None or wanted is None:
            if tensor is not wanted:
                return f"{what}{where} is {'missing' if tensor is None else 'there'}, unlike eager's"
            continue
        limit = TOLERANCE * float(wanted.abs().max())
        try:
            torch.testing.assert_close(tensor, wanted, rtol=TOLERANCE, atol=limit)
        except AssertionError as e:
            return f"{what}{where} differs from eager's: {in_a_line(e)}"
    return None

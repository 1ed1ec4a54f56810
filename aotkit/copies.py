"""Run a function forward and backward on copies of its inputs, leaving no trace."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from aotkit.aot import environment, pytree, random_state, without_saved_tensor_hooks
from aotkit.aot.environment import SWITCHED
from aotkit.errors import TraceError
from aotkit.input_copies import copy_inputs

COTANGENT_SEED = 0x5EED


@dataclass
class Outcome:
    """What one run produced.

    Attributes:
        outputs: the outputs, as returned.
        gradients: one for each input, None where there is none; None altogether if nothing requires gradients.
        inputs: the inputs after the call.
        changed: whether each input was mutated.
        memory: for each output, the inputs and earlier outputs that it shares memory with.
        random: the states in which it left torch's random generators.
        draws: whether those are others than before.
    """

    outputs: Any
    gradients: list[Tensor | None] | None
    inputs: list[Tensor]
    changed: list[bool]
    memory: list[frozenset[tuple[str, int]]] = field(default_factory=list)
    random: list[Tensor] = field(default_factory=list)
    draws: bool = False


def run_on_copies(
    fn: Callable[[list[Tensor]], Any], tensors: Sequence[Tensor], generators: Sequence[torch.Generator] = ()
) -> Outcome:
    """Run `fn` on copies of `tensors`, then backward with random cotangents; random state is left as it was.

    Args:
        generators: those that `fn` draws from, besides torch's own.

    Raises:
        TraceError: `fn` leaves a global switch changed, such as the default dtype.
    """
    try:
        return _run_on_copies(fn, tensors, _gradients, generators)
    except RuntimeError as e:
        if "incompatible with .grad()" not in str(e):
            raise
        # Reentrant torch.utils.checkpoint works with Tensor.backward only.
        return _run_on_copies(fn, tensors, _accumulated_gradients, generators)


def _run_on_copies(
    fn: Callable[[list[Tensor]], Any],
    tensors: Sequence[Tensor],
    differentiate: Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor | None]],
    generators: Sequence[torch.Generator],
) -> Outcome:
    leaves, inputs = copy_inputs(tensors)
    before = [_state(x) for x in inputs]
    # The caller's hooks are for the tensors that the real call saves; a function may leave another gradient mode.
    with (
        random_state(),
        unmoved(generators),
        torch.set_grad_enabled(torch.is_grad_enabled()),
        without_saved_tensor_hooks(),
    ):
        random, switches = _random(generators), environment()[1:]
        outputs = fn(list(inputs))
        if environment()[1:] != switches:
            raise TraceError(SWITCHED.format("the function"))
        changed = [_changed(x, state) for x, state in zip(inputs, before, strict=True)]
        results = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)]
        results += [x for x, c in zip(inputs, changed, strict=True) if c]
        roots = [t for t in results if t.requires_grad]
        wanted = [x for x in leaves if x.requires_grad]
        gradients = None
        if roots and wanted and torch.is_grad_enabled():
            found = iter(differentiate(roots, wanted))
            gradients = [next(found) if x.requires_grad else None for x in leaves]
        after = _random(generators)
    return Outcome(outputs, gradients, inputs, changed, _memory(outputs, inputs), after, not same_random(random, after))


@contextmanager
def unmoved(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Put random generators back, at the end, into the states that they had at the start."""
    states = [g.get_state() for g in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _random(generators: Sequence[torch.Generator]) -> list[Tensor]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *(g.get_state() for g in generators), *cuda]


def same_random(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Whether two runs left the random generators in the same states."""
    # The first use of CUDA may come in between; its generators are compared if both runs had them.
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=False))


def _memory(outputs: Any, inputs: Sequence[Tensor]) -> list[frozenset[tuple[str, int]]]:
    """For each output, the inputs and earlier outputs over the same storage."""
    owners: dict[int, set[tuple[str, int]]] = {}
    for i, x in enumerate(inputs):
        if x.layout is torch.strided:
            owners.setdefault(x.untyped_storage()._cdata, set()).add(("input", i))
    found = []
    for i, y in enumerate(pytree.tree_leaves(outputs)):
        owner = set()
        if isinstance(y, Tensor) and y.layout is torch.strided:
            owner = owners.setdefault(y.untyped_storage()._cdata, set())
        found.append(frozenset(owner))
        owner.add(("output", i))
    return found


def _state(tensor: Tensor) -> int | Tensor:
    """Tells whether a tensor was mutated. Inference tensors do not count that: their values have to serve."""
    return tensor.clone() if tensor.is_inference() else tensor._version


def _changed(tensor: Tensor, state: int | Tensor) -> bool:
    return tensor._version != state if isinstance(state, int) else not torch.equal(tensor, state)


def _gradients(roots: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor | None]:
    return list(torch.autograd.grad(roots, wanted, _cotangents(roots), allow_unused=True))


def _accumulated_gradients(roots: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor | None]:
    torch.autograd.backward(roots, _cotangents(roots))
    return [x.grad for x in wanted]


def _cotangents(roots: Sequence[Tensor]) -> list[Tensor]:
    return [cotangent(t, i) for i, t in enumerate(roots)]


def cotangent(output: Tensor, index: int) -> Tensor:
    """Random values, different for each element, so that a permuted or summed gradient cannot pass."""
    generator = torch.Generator().manual_seed(COTANGENT_SEED + index)
    dtype = torch.complex64 if output.is_complex() else torch.float32
    values = torch.randn(output.shape, generator=generator, dtype=dtype, device="cpu")
    return values.to(device=output.device, dtype=output.dtype)

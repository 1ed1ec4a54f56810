"""Run a function forward and backward on copies of its inputs, leaving no trace."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from aotkit.checking.alone import alone
from aotkit.checking.budget import Budget
from aotkit.checking.copies import Change, copy_inputs
from aotkit.checking.in_pieces import checksum
from aotkit.errors import TraceError
from aotkit.random import random_state, random_states
from aotkit.torch_private.autograd import without_compiled_autograd, without_saved_tensor_hooks
from aotkit.torch_private.dispatch import pytree
from aotkit.torch_private.switches import SWITCHED, environment
from aotkit.torch_private.tensors import unwrapped, wrapped_as

COTANGENT_SEED = 0x5EED
OTHER_COTANGENTS = 1 << 16  # more than a function has outputs


@dataclass
class Outcome:
    """What one run produced.

    Attributes:
        outputs: the outputs, as returned, but without what autograd keeps for them.
        gradients: one for each input, None where there is none; None altogether if nothing requires gradients.
        inputs: the inputs after the call; None for those that did not change.
        changed: whether each input did, or was expected to.
        checksums: of each input's values after the call, if these were watched.
        memory: for each input after the call, then for each output, those before it that it shares memory with.
        again: the gradients of a second backward pass over the same graph, if it was asked for.
        overwrote_cotangents: whether the backward pass changed the gradients that it was given.
        random: the states in which it left torch's random generators.
        draws: whether those are others than before.
        seconds: how long it took.
    """

    outputs: Any
    gradients: list[Tensor | None] | None
    inputs: list[Tensor | None]
    changed: Sequence[bool]
    checksums: list[int | None]
    memory: list[frozenset[tuple[str, int]]]
    again: list[Tensor | None] | None
    overwrote_cotangents: bool
    random: list[Tensor]
    draws: bool
    seconds: float


@dataclass(frozen=True)
class Plan:
    """How to run a function on copies.

    Attributes:
        generators: random generators that the function draws from, besides torch's own.
        change: gives the inputs other values.
        seed: of torch's generator; None: as it is.
        cotangents: which ones, of several sets.
        twice: run backward twice.
        changed: whether each input is expected to change; None: to be found out.
        watched: whether to tell from their checksums which others changed.
        before_backward: called between forward and backward.
        after_backward: called with the outputs and gradients, before the second backward pass.
        randomness: what the function runs under, so that it draws the numbers of aotkit's own.
    """

    generators: Sequence[torch.Generator] = ()
    change: Change | None = None
    seed: int | None = None
    cotangents: int = 0
    twice: bool = False
    changed: Sequence[bool] | None = None
    watched: bool = True
    before_backward: Callable[[], None] = lambda: None
    after_backward: Callable[[Any, Sequence[Tensor | None]], None] = lambda outputs, gradients: None
    randomness: Callable[[], AbstractContextManager[Any]] = nullcontext

    def compiled(self, want: Outcome) -> "Plan":
        """The same for a compiled function, which draws its numbers by itself, to compare with eager's outcome."""
        return replace(self, randomness=nullcontext, changed=want.changed)


# From inputs to outputs, for as long as these are used: for some functions, more has to be in place for their backward.
Run = Callable[[list[Tensor]], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Baseline:
    """A run in eager, with which a compiled one is compared.

    Attributes:
        names: one for each input.
        eager: the function.
        tensors: the inputs.
        want: what came of a run on copies of them.
        plan: how it ran.
        layouts: whether compiled outputs have to have the same strides.
        budget: the time for more such runs.
    """

    names: Sequence[str]
    eager: Run
    tensors: Sequence[Tensor]
    want: Outcome
    plan: Plan = Plan()
    layouts: bool = True
    budget: Budget = field(default_factory=lambda: Budget(None))


def at_once(fn: Callable[[list[Tensor]], Any]) -> Run:
    """For a function that needs nothing in place."""
    return lambda inputs: nullcontext(fn(inputs))


def run_on_copies(run: Run, tensors: Sequence[Tensor], plan: Plan = Plan()) -> Outcome:
    """Run a function on copies of `tensors`, then backward with random cotangents; random state is left as it was.

    Raises:
        TraceError: it leaves a global switch changed, such as the default dtype.
        NotImplementedError: inputs of different types share memory, and are to have other values.
    """
    try:
        return _run_on_copies(run, tensors, plan)
    except RuntimeError as e:
        if "incompatible with .grad()" not in str(e):
            raise
        # Reentrant torch.utils.checkpoint works with Tensor.backward only.
        return _run_on_copies(run, tensors, replace(plan, twice=False), accumulate=True)


def _run_on_copies(run: Run, tensors: Sequence[Tensor], plan: Plan, accumulate: bool = False) -> Outcome:
    start = time.monotonic()
    leaves, inputs = copy_inputs(tensors, plan.change)
    # Now: what gradients are written into requires them, too, but is no leaf then.
    wanted = [x if x.requires_grad else None for x in leaves]
    grad = torch.is_grad_enabled()
    versions = [_version(x) for x in inputs]
    # Not all that changes a tensor counts its version up: batch norm does not for its running statistics.
    before = [checksum(x) for x in inputs] if plan.changed is None else []
    # The caller's hooks are for the tensors that the real call saves; a function may leave another gradient mode.
    with (
        random_state(),
        unmoved(plan.generators),
        torch.set_grad_enabled(grad),
        without_saved_tensor_hooks(),
        without_compiled_autograd(),
        alone(),
    ):
        if plan.seed is not None:
            torch.manual_seed(plan.seed)
        random, switches = _random(plan.generators), environment()[1:]
        with plan.randomness(), run(list(inputs)) as outputs:
            if environment()[1:] != switches:
                raise TraceError(SWITCHED.format("the function"))
            mutated = [_version(x) != version for x, version in zip(inputs, versions, strict=True)]
            results = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)]
            # A leaf has no history, whatever changed its values: `weight.data`, which counts no version up, or a graph.
            results += [x for x, m in zip(inputs, mutated, strict=True) if m and not x.is_leaf]
            roots = [t for t in results if t.requires_grad]
            with torch.set_grad_enabled(grad):
                plan.before_backward()
            gradients, again, cotangents = None, None, _cotangents(roots, plan.cotangents)
            differentiable = roots and any(x is not None for x in wanted)
            has_backward = bool(differentiable and torch.is_grad_enabled())
            if has_backward:
                gradients = _gradients(roots, wanted, cotangents, plan.twice, accumulate)
            with torch.set_grad_enabled(grad):
                plan.after_backward(without_graph(outputs), gradients or ())
            if has_backward and plan.twice:
                again = _gradients(roots, wanted, cotangents, False, accumulate)
            overwrote = not all(map(torch.equal, cotangents, _cotangents(roots, plan.cotangents)))
        after = _random(plan.generators)
    draws = not same_random(random, after)
    memory = _memory(outputs, inputs)
    checksums = [checksum(x) for x in inputs] if plan.watched or plan.changed is None else []
    changed = plan.changed
    if changed is None:
        changed = [m or a != b for m, a, b in zip(mutated, checksums, before, strict=True)]
    kept = [x if c else None for x, c in zip(inputs, changed, strict=True)]
    outputs, kept = without_graph((outputs, kept))
    seconds = time.monotonic() - start
    return Outcome(outputs, gradients, kept, changed, checksums, memory, again, overwrote, after, draws, seconds)


def without_graph(values: Any) -> Any:
    """The same as plain tensors, without what autograd keeps for the backward pass: saved values, and all inputs."""
    return pytree.tree_map_only(Tensor, lambda t: unwrapped(t).detach().requires_grad_(t.requires_grad), values)


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
    cpu, *cuda = random_states()
    return [cpu, *(g.get_state() for g in generators), *cuda]


def same_random(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Whether two runs left the random generators in the same states."""
    # The first use of CUDA may come in between; its generators are compared if both runs had them.
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=False))


def _memory(outputs: Any, inputs: Sequence[Tensor]) -> list[frozenset[tuple[str, int]]]:
    """For each input, and each output after them, those before it over the same storage."""
    owners: dict[int, set[tuple[str, int]]] = {}
    found = []
    for kind, values in (("input", inputs), ("output", pytree.tree_leaves(outputs))):
        for i, value in enumerate(values):
            owner = set()
            if isinstance(value, Tensor) and value.layout is torch.strided:
                owner = owners.setdefault(unwrapped(value).untyped_storage()._cdata, set())
            found.append(frozenset(owner))
            owner.add((kind, i))
    return found


def _version(tensor: Tensor) -> int | None:
    """Changes when a tensor is mutated. Inference tensors do not count that: their values have to serve."""
    return checksum(tensor) if tensor.is_inference() else tensor._version


def _gradients(
    roots: Sequence[Tensor],
    wanted: Sequence[Tensor | None],
    cotangents: Sequence[Tensor],
    retain: bool,
    accumulate: bool,
) -> list[Tensor | None]:
    """One for each place; None where nothing is wanted."""
    given = [wrapped_as(root, c) for root, c in zip(roots, cotangents, strict=True)]
    if accumulate:
        torch.autograd.backward(roots, given)
        found = iter([x.grad for x in wanted if x is not None])
    else:
        leaves = [x for x in wanted if x is not None]
        found = iter(torch.autograd.grad(roots, leaves, given, retain_graph=retain, allow_unused=True))
    plain = (None if x is None else next(found) for x in wanted)
    return [None if g is None else unwrapped(g) for g in plain]


def _cotangents(roots: Sequence[Tensor], which: int) -> list[Tensor]:
    return [cotangent(unwrapped(t), i + which * OTHER_COTANGENTS) for i, t in enumerate(roots)]


def cotangent(output: Tensor, index: int) -> Tensor:
    """Random values, different for each element, so that a permuted or summed gradient cannot pass."""
    device = output.device if output.is_cuda else torch.device("cpu")  # a language model's logits take seconds on a CPU
    generator = torch.Generator(device).manual_seed(COTANGENT_SEED + index)
    dtype = torch.complex64 if output.is_complex() else torch.float32
    values = torch.randn(output.shape, generator=generator, dtype=dtype, device=device)
    return values.to(device=output.device, dtype=output.dtype)

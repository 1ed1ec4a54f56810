"""A call with inputs of its own, which those that are timed side by side share."""

import copy
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from aotkit.capture import flatten
from aotkit.checking import copy_inputs, cotangent
from aotkit.launches import Step
from aotkit.torch_private.dispatch import pytree


class Workload:
    """A function with copies of the arguments of a call; if it is a module, or a method of one, a copy of that.

    What a plain function changes outside of its arguments stays changed.

    Attributes:
        fn: what is called.
        inputs: the tensors among the arguments.
        args, kwargs: of the next step.
        cuda: whether tensors of it are on a GPU.
        mutates: whether it changes its arguments, which are copied anew for each step.
        differentiates: whether there are gradients to compute.
    """

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.fn = with_state_of_its_own(fn)
        self._arguments = flatten(args, kwargs)
        self.inputs: list[Tensor] = []
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self._renew()
        before = self._state()
        outputs = self.fn(*self.args, **self.kwargs)
        self.mutates = before != self._state()
        tensors = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)]
        self.cuda = any(t.is_cuda for t in [*tensors, *self.inputs])
        roots = _differentiable(outputs)
        self._cotangents = [cotangent(t, i) for i, t in enumerate(roots)]
        self.differentiates = bool(roots)
        self.leaves = _leaves(roots)
        self._gradients = [leaf.grad for leaf in self.leaves]

    @property
    def device(self) -> torch.device:
        """The one that peaks of memory are of."""
        return torch.device("cuda" if self.cuda else "cpu")

    def restore(self) -> None:
        """Give tensors that the function captures their gradients back."""
        for leaf, gradient in zip(self.leaves, self._gradients, strict=True):
            leaf.grad = gradient

    def step(self, call: Callable[..., Any]) -> Step:
        """One training step of a variant."""
        backward = self.backward if self.differentiates else None
        return Step(self.prepare, lambda: self.call(call), backward)

    def call(self, fn: Callable[..., Any]) -> Any:
        """What a variant returns for the arguments, in lists and dicts of their own: it may change those, too."""
        args, kwargs = self._arguments.rebuild(self.inputs)
        return fn(*args, **kwargs)

    def backward(self, outputs: Any) -> None:
        """Add gradients up in all leaves."""
        torch.autograd.backward(_differentiable(outputs), self._cotangents)

    def prepare(self) -> None:
        """What comes before a step, and is not timed."""
        if self.mutates:
            self._renew()
        self.args, self.kwargs = self._arguments.rebuild(self.inputs)
        self.clear()

    def clear(self) -> None:
        """Forget all gradients."""
        for leaf in self.leaves:
            leaf.grad = None

    def with_inputs(self, change: Callable[[Tensor], Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with copies of the tensors that have other values."""
        return self._arguments.rebuild([change(x) for x in copy_inputs(self._arguments.tensors)[1]])

    def _state(self) -> Any:
        """Another one once the function has changed its tensors, or what they are in."""
        leaves, spec = pytree.tree_flatten((self.args, self.kwargs))
        return [t._version for t in self.inputs], [*map(id, leaves)], str(spec)

    def _renew(self) -> None:
        _, self.inputs = copy_inputs(self._arguments.tensors)
        self.args, self.kwargs = self._arguments.rebuild(self.inputs)


def with_state_of_its_own(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a module, or of a method of one; any other function as it is."""
    if isinstance(fn, nn.Module):
        return copy.deepcopy(fn)
    owner = getattr(fn, "__self__", None)
    if isinstance(fn, MethodType) and isinstance(owner, nn.Module):
        return MethodType(fn.__func__, copy.deepcopy(owner))
    return fn


def _differentiable(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, Tensor):  # the plain case in little time: steps of few microseconds are timed, too
        return [outputs] if outputs.requires_grad else []
    return [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]


def _leaves(roots: Sequence[Tensor]) -> list[Tensor]:
    """The tensors in which backward accumulates gradients."""
    leaves: dict[int, Tensor] = {}
    nodes = [t.grad_fn for t in roots if t.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if (variable := getattr(node, "variable", None)) is not None:
            leaves[id(variable)] = variable
        following = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= following
        nodes += following
    return list(leaves.values())

"""The inputs that a compilation is made for, and the function run eagerly on others in their places."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from aotkit.capture.arguments import Arguments
from aotkit.capture.executed import watching
from aotkit.capture.places import MISSING, in_copied_context, substituted
from aotkit.capture.reached import key_text
from aotkit.capture.recipe import Recipe
from aotkit.capture.refusals import EagerOnly, OwnError
from aotkit.capture.sizes import OpenSizes
from aotkit.capture.storages import Storages
from aotkit.capture.walk import Walk
from aotkit.checking import Plan, run_on_copies
from aotkit.errors import AotkitError, TraceError, is_out_of_memory
from aotkit.passes import holds_address, tensor_kind
from aotkit.random import SeedNeeded, new_seed
from aotkit.runtime import memory_pattern
from aotkit.timeline import stage
from aotkit.torch_private.dispatch import pytree

NESTED = (
    "nn.TransformerEncoder leaves padding out by nested tensors in eval mode, which a trace does not: "
    "enable_nested_tensor=False makes both alike"
)
USED_UP = "backward through the graph a second time"  # in the error of a function that has run the backward pass itself


class Signature:
    """The inputs that a compilation is made for: arguments, and tensors that the function captures.

    Attributes:
        tensors: all of them, arguments first.
        names: one for each.
        generators: random generators that the function draws from, besides torch's own.
        is_watched: whether some functions must not run, as they were not looked into.
        told: for a recipe, all that decides what the function is compiled to, as it was before anything ran.
        open_sizes: which sizes are left open where the recipe is `dynamic`; unless somebody says else, all arguments'.
        seeded: whether a seed follows the tensors as one more input, since the function draws shared random numbers.
    """

    def __init__(self, recipe: Recipe, arguments: Arguments, walk: Walk, names: Sequence[str]) -> None:
        self._recipe = recipe
        self._arguments = arguments
        self._walk = walk
        captured = [tensor for _, tensor in walk.tensors.values()]
        self.tensors = [*arguments.tensors, *captured]
        self.names = [*names, *(name for name, _ in walk.tensors.values())]
        self.generators = walk.generators
        self.seeded = False
        self.told: list[tuple[Recipe, Sequence[str] | None]] = []
        self.is_watched = bool(walk.unfollowed)
        given = ([True] * t.dim() for t in arguments.tensors)
        self.open_sizes: OpenSizes = [*given, *([False] * t.dim() for t in captured)]

    def text(self) -> list[str] | None:
        """All that decides what the function computes, but for values, the machine and its recipe.

        None if that cannot be told so that it is the same in each process that runs the same.
        """
        self._walk.reached.names(self._walk.mentioned)
        reached, given = self._walk.reached.text(), key_text(self._arguments.key)
        if reached is None or given is None or self.generators or self.is_watched:
            return None
        # Whether they are leaves decides about strides of gradients.
        kinds = (f"{tensor_kind(t)} {t.is_leaf} {t._is_view()}" for t in self.tensors)
        texts = [reached, given, repr(memory_pattern(self.tensors)), *self.names, *kinds]
        return None if any(map(holds_address, texts)) else texts

    def run(self, doing: str, tensors: Sequence[Any]) -> Any:
        """Run the function with `tensors` in the places of `self.tensors`."""
        with self.running(doing, tensors) as outputs:
            return outputs

    def running(self, doing: str, tensors: Sequence[Any]) -> AbstractContextManager[Any]:
        """The same, for as long as the outputs are used: a backward pass may run parts of the function again."""
        return in_copied_context(self._running(doing, tensors))

    @contextmanager
    def _running(self, doing: str, tensors: Sequence[Any]) -> Iterator[Any]:
        tensors = self._stand_ins(tensors)
        n = len(self._arguments.tensors)
        captured = self._walk.tensors
        args, kwargs = self._arguments.rebuild(tensors[:n])
        before = pytree.tree_flatten((args, kwargs))
        replacements = dict(zip(captured, tensors[n:], strict=True))
        walk, untouched = self._walk, Storages(tensors, self.names)
        attributes = [dict(vars(t)) for t in tensors]
        with watching(walk.unfollowed), substituted(walk.slots, walk.containers, walk.caches, replacements, doing):
            outputs = self._recipe.fn(*args, **kwargs)
            leaves, spec = pytree.tree_flatten((args, kwargs))
            if spec != before[1] or any(a is not b for a, b in zip(leaves, before[0], strict=True)):
                raise TraceError(
                    f"the function changes a list or dict among its arguments while it is {doing}; a compiled graph "
                    "would not repeat that. Return the new value instead, or use capture='dynamo'."
                )
            untouched.verify()
            self._refuse_new_attributes(tensors, attributes)
            yield outputs

    def _refuse_new_attributes(self, tensors: Sequence[Any], before: Sequence[dict[str, Any]]) -> None:
        for name, tensor, old in zip(self.names, tensors, before, strict=True):
            for key in vars(tensor).keys() | old.keys():
                if vars(tensor).get(key, MISSING) is not old.get(key, MISSING):
                    raise TraceError(
                        f"the function assigns {key!r} of {name!r}, which belongs to the tensor of one call and not to "
                        "a graph. Do that outside of the compiled function, or use capture='dynamo'."
                    )

    def why_traced_otherwise(self) -> str | None:
        """Why a trace may compute something else than the function, and the function is right; None: it must not."""
        return NESTED if any(map(_takes_nested_tensors, self._walk.modules)) else None

    def plan(self) -> Plan:
        """How to run the function on copies of its inputs."""
        return Plan(self.generators, randomness=self.randomness)

    def randomness(self, seed: Tensor | None = None) -> AbstractContextManager[Any]:
        """What the function runs under, so that it draws its random numbers from a seed: a new one, if none is given.

        Raises:
            SeedNeeded: it draws, but is not seeded.
        """
        return self._recipe.randomness(new_seed() if seed is None and self.seeded else seed)

    def _stand_ins(self, tensors: Sequence[Any]) -> list[Any]:
        """The tensors to run with: one for each input that is one tensor, parameters where parameters are."""
        first: dict[int, Any] = {}
        for original, given in zip(self.tensors, tensors, strict=True):
            if first.setdefault(id(original), given) is given and given is not original:
                vars(given).update(vars(original))
                if isinstance(original, nn.Parameter):
                    given._is_param = True  # makes isinstance(given, nn.Parameter) true
        return [first[id(original)] for original in self.tensors]


def _takes_nested_tensors(module: nn.Module) -> bool:
    if not isinstance(module, nn.TransformerEncoder) or module.training or not module.use_nested_tensor:
        return False
    return not (torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()))


@stage("run in eager")
def outcome_in_eager(signature: Signature) -> Any:
    """Outputs, gradients and mutations of the function itself, run on copies of the inputs.

    Raises:
        OwnError: the function raises.
        EagerOnly: only the backward pass of what it returns does, such as one that the function has already run.
    """
    run = functools.partial(signature.running, "run on copies of its inputs")
    returned: list[bool] = []
    plan = replace(signature.plan(), before_backward=lambda: returned.append(True))
    try:
        return run_on_copies(run, signature.tensors, plan)
    except SeedNeeded:
        signature.seeded = True
        return outcome_in_eager(signature)
    except (AotkitError, EagerOnly):
        raise
    except Exception as e:
        if returned and not is_out_of_memory(e):
            # Another way of capture is no help where an operator has no derivative.
            raise EagerOnly(
                f"the backward pass of what it returns raises {type(e).__name__}: {e}", final=USED_UP not in str(e)
            ) from e
        raise OwnError(e) from e

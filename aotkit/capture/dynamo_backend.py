"""The compiler that TorchDynamo is given: it makes a piece of each graph that this captures."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from torch.fx import GraphModule

from aotkit.capture.call_record import Ran, ran
from aotkit.capture.captured_graph import (
    attributes_as_inputs,
    end_graph_of_foreign,
)
from aotkit.capture.later import Check, later_for
from aotkit.capture.piece import CapturedGraph
from aotkit.capture.recipe import Recipe
from aotkit.errors import AotkitError
from aotkit.runtime import (
    warn_of_fallback,
)
from aotkit.torch_private.dynamo import ends_graph
from aotkit.torch_private.fake_tensors import as_traced


class CapturedCompiler:
    """A `torch.compile` backend: compiles one captured graph by a recipe, and checks it on its first run.

    Attributes:
        compiled: how many graphs it has compiled.
        captured: references to the pieces that it has made, which live as long as Dynamo runs them.
        too_large: why it has not compiled others, in place of which Dynamo has made smaller ones, or none.
    """

    def __init__(self, recipe: Recipe, check: Check, on_error: str = "raise") -> None:
        self._recipe = recipe
        self._check = check
        self._on_error = on_error
        self._warned = False
        self.compiled = 0
        self.captured: list[ref[CapturedGraph]] = []
        self.too_large: dict[str, None] = {}
        self.__name__ = f"aotkit_{recipe.asked_for}_{recipe.partition_name}"

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        with (ran.get() or Ran()).recorded(self._recipe.subject):
            return self._compiled(gm, example_inputs)

    def _compiled(self, gm: GraphModule, example_inputs: Sequence[Any]) -> "CapturedGraph":
        gm, attributes = attributes_as_inputs(gm)
        recipe = self._recipe.for_inputs([*example_inputs, *attributes])
        piece = CapturedGraph(gm, attributes, recipe, self.fall_back)
        self.captured.append(ref(piece))
        try:
            end_graph_of_foreign(gm, example_inputs)
            inputs = [*example_inputs, *as_traced(attributes, example_inputs)]
            piece.later = later_for(gm, inputs, recipe) if self._check == "later" else None
            if piece.later is None:
                piece.compile(gm, inputs)
        except AotkitError as e:
            piece.fail(e)
        except Exception as e:
            if ends_graph(e):
                self.too_large[f"a graph of it cannot be traced: {type(e).__name__}: {e}"] = None
            raise
        else:
            self.compiled += 1
            piece.is_unchecked = bool(self._check)
        return piece

    def fall_back(self, error: AotkitError) -> None:
        """Warn, the first time, that something runs eagerly, if that is what the user wants; else raise."""
        if self._on_error == "raise":
            raise error
        if not self._warned:
            self._warned = True
            warn_of_fallback(self._recipe.name, error)

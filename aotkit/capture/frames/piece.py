"""The graph of a call that Dynamo captured in an earlier process, as that compiled it."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from aotkit.capture.call_record import ran
from aotkit.capture.kept_graphs import KeptGraphs, graphs_made
from aotkit.capture.recipe import Recipe
from aotkit.checking import CheckReport
from aotkit.errors import AotkitError
from aotkit.inspection import Graphs
from aotkit.random import new_seed
from aotkit.runtime import Apart, hidden_overlap, mutation_pattern
from aotkit.stages import Product
from aotkit.timeline import current


class NotAsKept(Exception):
    """A call is none for which the graph is right, or asks for what needs the captured graph."""


class KeptPiece:
    """Stands in for a `CapturedGraph`, of which nothing is there but what was compiled.

    Attributes:
        made, report, timeline: as a captured graph's.
        ends_because, error, why_eager: None.
    """

    ends_because: str | None = None
    error: AotkitError | None = None
    why_eager: str | None = None

    def __init__(
        self, recipe: Recipe, made: KeptGraphs, input_names: Sequence[str], report: CheckReport | None
    ) -> None:
        self._recipe = recipe
        self.made = made
        self._input_names = input_names
        self.report = report
        self.timeline = current()
        self._seeded: bool = made.more["seeded"]
        self._mutated: Sequence[int] = made.more["mutated"]
        self._are_apart = Apart()

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        call = ran.get()
        # Mutated inputs did not share memory when it was captured.
        is_other = self._mutated and not self._are_apart(inputs)
        if is_other and (mutation_pattern(inputs, self._mutated) or hidden_overlap(inputs)):
            raise NotAsKept
        if call is not None:
            call.pieces.append(self)
        seed: list[Tensor] = [new_seed()] if self._seeded else []
        return self.made.way_in.call([*inputs, *seed])

    @property
    def graphs(self) -> Graphs | None:
        """What was compiled."""
        return graphs_made(self.made, self._input_names, self._recipe.why_backend)

    @property
    def products(self) -> Mapping[str, Product]:
        """What the compilers made of them."""
        return self.made.products

    def saved_in_eager(self) -> int | None:
        """None: that needs the captured graph."""
        return None

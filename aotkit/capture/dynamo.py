"""Capture by TorchDynamo: what a function's Python code does with values of tensors stays in Python."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

from torch import Tensor

from aotkit.capture.call_record import BY_DYNAMO, Ran, ran
from aotkit.capture.captured_graph import in_short
from aotkit.capture.dynamo_backend import CapturedCompiler
from aotkit.capture.frames import KeptCaptures, KeptPiece, NotAsKept, ToldFrame, keep_frame
from aotkit.capture.later import Check
from aotkit.capture.piece import CapturedGraph
from aotkit.capture.recipe import Recipe
from aotkit.checking import CheckReport
from aotkit.errors import AotkitError, TraceError
from aotkit.inspection import Graphs
from aotkit.random import random_state
from aotkit.stages import Product
from aotkit.timeline import Timeline
from aotkit.torch_private.dynamo import MOST_DYNAMO_VARIANTS, Condition, dynamo_compile, graph_breaks, limits_hit
from aotkit.torch_private.tensors import sizes_to_leave_open

Piece = CapturedGraph | KeptPiece
NOTHING_TO_COMPILE = "TorchDynamo finds nothing to compile in it"
LIMIT = (
    "TorchDynamo has compiled it {} times, for other arguments each time, and compiles no more; pass what changes as "
    "tensors"
)


@dataclass
class Visit:
    """What one call of a function that Dynamo captures ran.

    Attributes:
        name: the function's.
        pieces: the captured graphs, in the order in which they ran.
        breaks: why there are several, and what stays in Python: the reasons that Dynamo gives.
        eager: why the whole call ran uncompiled; None if it did not.
        error: why a piece of it did.
    """

    name: str
    pieces: list[Piece] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)
    eager: str | None = None
    error: AotkitError | None = None

    @property
    def graphs(self) -> Graphs:
        """The graphs of the only piece.

        Raises:
            TraceError: there is none, or there are several.
        """
        graphs = self._piece().graphs
        assert graphs is not None  # else it has an error
        return graphs

    def launched(self) -> tuple[Graphs, Mapping[str, Product], Sequence[Tensor]]:
        """The graphs of the only piece, what runs them, and no inputs: it may be timed on made-up ones.

        Raises:
            TraceError: there is none, or there are several.
        """
        return self.graphs, self._piece().products, ()

    @property
    def report(self) -> CheckReport:
        """The verdicts on all pieces, as one.

        Raises:
            TraceError: none of them is compiled.
        """
        if self.error is not None:
            raise self.error
        reports = [piece.report for piece in self.pieces if piece.report is not None]
        if not reports:
            raise TraceError(f"{self.name!r} runs eagerly for these inputs: {self.eager or NOTHING_TO_COMPILE}.")
        if len(reports) == 1:
            return reports[0]
        merged = CheckReport(
            reports[0].subject, repeated=all(r.repeated for r in reports), kept=all(r.kept for r in reports)
        )
        for i, report in enumerate(reports):
            merged.comparisons += [replace(c, what=f"graph {i}: {c.what}") for c in report.comparisons]
        return merged

    @property
    def timeline(self) -> Timeline | None:
        """Where the time of the calls went that compiled the pieces; None if it ran none."""
        found = {id(t): t for piece in self.pieces if (t := piece.timeline) is not None}
        return Timeline.joined([*found.values()]) if found else None

    def _piece(self) -> Piece:
        if self.error is not None:
            raise self.error
        if len(self.pieces) == 1:
            return self.pieces[0]
        if not self.pieces:
            raise TraceError(f"{self.name!r} runs eagerly for these inputs: {self.eager or NOTHING_TO_COMPILE}.")
        why = "; ".join(self.breaks) or "TorchDynamo gives no reason"
        raise TraceError(
            f"{self.name!r} runs {len(self.pieces)} graphs for these inputs, so it has no single set of graphs: {why}. "
            "`explain(...).all_graphs` has those of each; or compile the part that you want to look at."
        )


class DynamoFunction:
    """A function that Dynamo captures, in one piece or several, each compiled by one recipe.

    Args:
        dynamic: leave sizes open: from the start, never, or (None) those that have changed.
        strict: raise where Dynamo would run the function uncompiled.
        timeline: that of the call for which this is made.
    """

    def __init__(
        self,
        recipe: Recipe,
        dynamic: bool | None,
        check: Check,
        on_error: str,
        strict: bool,
        timeline: Timeline | None = None,
    ) -> None:
        self._recipe = recipe
        self._on_error = on_error
        self._timeline = timeline  # of the first call
        self._breaks: dict[str, None] = {}  # what it has not captured, in Dynamo's words, which it says only once
        self._limited = ""
        # torch keeps compilers for ever, and would keep the function's module with it.
        nothing: Any = None
        self._compiler = CapturedCompiler(replace(recipe, fn=nothing), check, on_error)
        self._dynamic, self._strict = dynamic, strict
        self._told: list[ToldFrame] = []  # of the frames that Dynamo compiles in one call
        # What is compiled in the background has a graph of its own.
        self._kept = None if check == "later" else KeptCaptures(recipe, bool(check))

    @functools.cached_property
    def _call(self) -> Callable[..., Any]:
        """The function, captured by Dynamo, which is imported for that."""
        too_many = functools.partial(_too_many, self._recipe.fn) if self._strict else None
        tell = self._tell if self._kept is not None and self._kept.is_possible else None
        return dynamo_compile(
            self._recipe.fn, self._compiler, self._dynamic, own_errors=AotkitError, too_many=too_many, tell=tell
        )

    @property
    def captured(self) -> list[Piece]:
        """The pieces of all calls so far, each once, in the order in which they were captured."""
        kept = () if self._kept is None else self._kept.pieces
        return [*kept, *(piece for made in self._compiler.captured if (piece := made()) is not None)]

    @property
    def entries(self) -> int:
        """How many graphs are compiled."""
        return self._compiler.compiled + (0 if self._kept is None else len(self._kept.pieces))

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str | None]:
        """The function's result, and why the call, or a part of it, ran eagerly, if one did."""
        call, limits = self._new_call(), limits_hit()
        try:
            with self._recorded(call):
                result = self._run(call, args, kwargs)
        except TraceError as e:
            # If a part of it ran, to run that again would repeat what it changes.
            if self._on_error == "raise" or call.pieces:
                raise
            self._compiler.fall_back(e)
            return self._recipe.fn(*args, **kwargs), None
        if (outer := ran.get()) is not None:  # what is compiled in a part of another function is so in that, too
            outer.pieces.extend(call.pieces)
            outer.eager.extend(call.eager)
        if is_limited := limits_hit() > limits:
            self._limited = "part" if call.pieces else "whole"
        if not call.pieces:
            return result, self._why_eager()
        return result, "; ".join(_parts_in_eager(call, is_limited)) or None

    def visit(self, args: Sequence[Any], kwargs: Mapping[str, Any], check: bool = False) -> Visit:
        """Make a call once more, to know what it runs. Random state is put back; mutations remain.

        Args:
            check: compare each graph with eager, for the values that it has now.
        """
        call = self._new_call(again=check, waits=True)
        with self._recorded(call), random_state():
            self._run(call, args, kwargs)
        error = next((piece.error for piece in call.pieces if piece.error is not None), None)
        reasons = [piece.ends_because for piece in call.pieces if piece.ends_because]
        if not reasons and len(call.pieces) > 1:  # none was there yet when Dynamo met what it cannot capture
            reasons = [*self._breaks]
        reasons = list(dict.fromkeys([*reasons, *self._compiler.too_large]))
        eager: str | None = None
        if error is not None:
            eager = str(error)
        elif len(call.eager) < len(call.pieces):
            reasons += _parts_in_eager(call, self._limited == "part")
        else:
            eager = "; ".join(_parts_in_eager(call, limited=False)) or self._why_eager()
        return Visit(self._recipe.name, call.pieces, reasons, eager, error)

    def recorded(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Ran]:
        """The result of a call that is made once more, and what it ran, with its values. Random state is put back."""
        call = Ran(waits=True, values=[])
        with self._recorded(call), random_state():
            return self._run(call, args, kwargs), call

    def _run(self, call: Ran, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of a call, as an earlier process captured it if one has, else by Dynamo."""
        frames = None if self._kept is None else self._kept.frames()
        # Who asks for more than the result needs the captured graph.
        if frames is not None and not call.again and call.values is None:
            if frames.waits and call.timeline is None:
                call.timeline = Timeline(self._recipe.subject, call.began)
            with call.timeline.recording() if call.timeline else nullcontext():
                made = frames.find(args, kwargs)
            if made is not None:
                with suppress(NotAsKept):
                    return made()
        compiled = self._compiler.compiled
        self._told.clear()
        # Of calls that Dynamo has captured itself, it knows the sizes.
        begins = self._dynamic is None and not compiled
        other_sizes = frames.other_sizes(args, kwargs) if frames is not None and begins else ()
        with sizes_to_leave_open(other_sizes) if other_sizes else nullcontext():
            result = self._call(*args, **kwargs)
        if self._compiler.compiled == compiled + 1 and len(call.pieces) == len(self._told) == 1 and not call.eager:
            piece, timeline = call.pieces[0], call.timeline
            if frames is not None and isinstance(piece, CapturedGraph) and timeline is not None:
                seconds = sum(stage.seconds for stage in timeline.stages if stage.name == BY_DYNAMO)
                with timeline.recording():
                    keep_frame(frames.name, piece, self._told[0], seconds)
        return result

    def _tell(self, function: FunctionType, is_plain: bool, conditions: Sequence[Condition]) -> None:
        self._told.append(ToldFrame(function, is_plain, conditions))

    def _new_call(self, again: bool = False, waits: bool = False) -> Ran:
        timeline, self._timeline = self._timeline, None
        return Ran(again=again, waits=waits, timeline=timeline)

    @contextmanager
    def _recorded(self, call: Ran) -> Iterator[None]:
        """Note what a call runs, and what Dynamo, if it compiles, does not capture of it."""
        before = graph_breaks()
        token = ran.set(call)
        try:
            yield
        finally:
            ran.reset(token)
            if call.timeline is not None:
                call.timeline.end()
            after = graph_breaks()
            if after != before:
                new = (reason for reason, count in after.items() if count > before.get(reason, 0))
                self._breaks.update(dict.fromkeys(map(in_short, new)))

    def _why_eager(self) -> str:
        if self._limited == "whole":
            return LIMIT.format(MOST_DYNAMO_VARIANTS)
        reasons = "; ".join([*self._compiler.too_large, *self._breaks])
        return f"{NOTHING_TO_COMPILE} ({reasons})" if reasons else NOTHING_TO_COMPILE


def _too_many(fn: Any) -> TraceError:
    return TraceError(
        f"Dynamo compiled {fn!r} {MOST_DYNAMO_VARIANTS} times, for different arguments each time, and gave up. Pass "
        "what changes as tensors, or compile a part of it that is called with fewer variants."
    )


def _parts_in_eager(call: Ran, limited: bool) -> list[str]:
    """Why parts of a call ran eagerly, or all of it."""
    parts = [f"in a part, {LIMIT.format(MOST_DYNAMO_VARIANTS)}"] if limited else []
    where = "" if len(call.eager) == len(call.pieces) else "in a part, "
    return parts + [where + reason for reason in dict.fromkeys(call.eager)]

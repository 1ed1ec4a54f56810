"""What became of each module of a fused model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from aotkit.capture import Piece
from aotkit.compiled import CompiledFunction
from aotkit.fusing.classes import Fusion, is_fused, original_class
from aotkit.inspection import saved_bytes
from aotkit.text import aligned, bytes_name, counted, listed, paint_of, sum_known

MOST_NAMES = 2


@dataclass(frozen=True)
class FusedGraph:
    """One compiled graph.

    Attributes:
        saved_bytes: what it keeps for the backward pass, besides inputs and outputs; None without such a pass.
        eager_bytes: what eager would keep; None if that is not known.
        eager: why it runs uncompiled; None if it does not.
        goes_on: whether Python, and other graphs, follow it in a call.
    """

    saved_bytes: int | None
    eager_bytes: int | None
    eager: str | None
    goes_on: bool


@dataclass(frozen=True)
class FusedPart:
    """What became of a module.

    Attributes:
        name: in the model; "" is the model itself.
        cls: the name of its class.
        outcome: "compiled", "swapped" for a kernel of `aotkit.nn`, or "left" as it is.
        reason: why, or what it is.
        graphs: what is compiled so far for the modules that share it.
        eager: why calls of these, or parts of them, have run uncompiled.
    """

    name: str
    cls: str
    outcome: str
    reason: str
    graphs: Sequence[FusedGraph] = ()
    eager: Sequence[str] = ()

    @property
    def saved_bytes(self) -> tuple[int | None, int | None]:
        """What one call of such a module saves, by the graphs that were compiled last, and what it would in eager."""
        training = [graph for graph in self.graphs if graph.saved_bytes is not None]
        last = training[-1:]
        for graph in reversed(training[:-1]):
            if not graph.goes_on:
                break
            last.append(graph)
        saved, eager = sum_known(g.saved_bytes for g in last), sum_known(g.eager_bytes for g in last)
        return (saved, eager) if last else (None, None)


@dataclass(frozen=True)
class FusionReport:
    """What became of a model; `print` it.

    Attributes:
        modules: by name, those that the config is about; "" is the model itself.
    """

    modules: Mapping[str, FusedPart]

    def __str__(self) -> str:
        groups: dict[Any, list[FusedPart]] = {}
        for part in self.modules.values():
            groups.setdefault((part.cls, part.outcome, part.reason), []).append(part)
        rows = [["module", "class", "outcome", "graphs", "a call saves", "in eager"]]
        rows += [_row(parts) for parts in groups.values()]
        heading, *lines = aligned(rows)
        text = [paint_of(None)(heading, "heading")]
        for line, parts in zip(lines, groups.values(), strict=True):
            eager = dict.fromkeys(reason for part in parts for reason in part.eager)
            text += [line, f"  {parts[0].reason}", *(f"  runs eagerly: {reason}" for reason in eager)]
        return "\n".join(text)

    def json(self) -> dict[str, Any]:
        """The same as plain data."""
        found = {}
        for name, part in self.modules.items():
            found[name] = {**vars(part), "graphs": [{**vars(graph)} for graph in part.graphs]}
        return found


def _row(parts: Sequence[FusedPart]) -> list[str]:
    part = parts[0]
    names = listed([p.name or "(the model)" for p in parts], MOST_NAMES)
    found = sum(map(len, {id(p.graphs): p.graphs for p in parts}.values()))  # which several share
    graphs = counted(found, "graph") if found else ""
    return [names, part.cls, part.outcome, graphs, *map(_bytes_name, part.saved_bytes)]


def _bytes_name(nbytes: int | None) -> str:
    return "" if nbytes is None else bytes_name(nbytes)


def report_of(model: nn.Module, fusion: Fusion) -> FusionReport:
    """The report on a model that was fused like that."""
    modules = dict(model.named_modules())
    known: dict[CompiledFunction[..., Any], Sequence[FusedGraph]] = {}
    parts = {}
    for name, decision in fusion.decisions.items():
        if (module := modules.get(name)) is None:  # it has been taken out since
            continue
        part = FusedPart(name, original_class(module).__name__, decision.outcome, decision.reason)
        if decision.outcome != "left" and not is_fused(module):
            part = replace(part, outcome="left", reason="it has been unfused, or another module has taken its place")
        elif decision.outcome == "compiled":
            function = fusion.function_of(original_class(module), decision.group)
            graphs = known.setdefault(function, [*map(_fused_graph, function.captured)])
            failed = {graph.eager for graph in graphs if graph.eager is not None}
            part = replace(part, graphs=graphs, eager=sorted(failed | function.eager_reasons))
        parts[name] = part
    return FusionReport(parts)


def _fused_graph(piece: Piece) -> FusedGraph:
    graphs = piece.graphs
    goes_on = piece.ends_because is not None
    if piece.why_eager is not None or graphs is None or graphs.backward is None:
        return FusedGraph(None, None, piece.why_eager, goes_on)
    return FusedGraph(saved_bytes(graphs), piece.saved_in_eager(), None, goes_on)

"""What becomes of a call, in words, and what it launches."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aotkit.errors import TraceError
from aotkit.inspection import INSTEAD, Graphs, checkpointed, kernels_html, kernels_json, plain_page
from aotkit.text import counted, paint_of, printable, terminal_width, wrapped
from aotkit.timeline import Timeline, in_a_line

if TYPE_CHECKING:
    from aotkit.launches import Kernels


@dataclass(frozen=True)
class Explanation:
    """How a call with certain arguments runs, and why; `print` it, or show it in a notebook.

    What it launches is found out, by running the graphs on copies of the arguments, when it is first asked for.

    Attributes:
        subject: the function, its backend and its partitioner.
        eager: why the call runs eagerly, or None if it runs compiled graphs.
        capture: "aot" if it was traced directly, "dynamo" if TorchDynamo captured it; None in eager.
        handed_over: why TorchDynamo captures it and it is not traced directly; "" if it is.
        pieces: how many graphs TorchDynamo captured of it; each has its forward and its backward graph.
        breaks: why there are several, that is what stays in Python and where.
        detour: why it takes AOTAutograd's wrappers into the graphs, or None if it goes straight to them.
        tier: the language of the code between the guards and the graphs: "C++", "Python", or None in eager.
        entries: how many kinds of inputs the function is compiled for now.
        all_graphs: those of each piece, in the order in which they run; without kernels.
        timeline: where the time of the first such call went; None in eager.
    """

    subject: str
    eager: str | None = None
    capture: str | None = None
    handed_over: str = ""
    pieces: int = 0
    breaks: Sequence[str] = ()
    detour: str | None = None
    tier: str | None = None
    entries: int = 0
    all_graphs: Sequence[Graphs] = field(default=(), repr=False, compare=False)
    timeline: Timeline | None = field(default=None, repr=False, compare=False)
    _launched: Callable[[], Any] | None = field(default=None, repr=False, compare=False)

    @functools.cached_property
    def kernels(self) -> "Kernels":
        """What the call launches, forward and backward.

        Raises:
            TraceError: it runs eagerly, or in several pieces; the message says why.
        """
        if self._launched is None:
            raise TraceError(f"{self.subject} launches no kernels of its own: such a call runs eagerly: {self.eager}.")
        from aotkit.launches import kernels_of

        return kernels_of(*self._launched())

    @property
    def graphs(self) -> Graphs:
        """The graphs that the call runs, with the kernels, for the viewer, `Graphs.json()` and `aotkit.diff`.

        Raises:
            TraceError: as for `kernels`.
        """
        return dataclasses.replace(self.kernels.graphs, kernels=self.kernels)

    @property
    def way(self) -> str:
        """How the call comes to its graphs, in words."""
        kinds = f"{self.entries} kind{'s' if self.entries != 1 else ''} of inputs"
        choices = {f"  {graphs.why_backend}": None for graphs in self.all_graphs if graphs.why_backend}
        lines = [self.subject, *choices, f"  compiled for {kinds} so far"]
        if self.eager is not None:
            return "\n".join([*lines, f"  such a call runs eagerly: {self.eager}"])
        lines.append("  such a call runs compiled graphs")
        if marked := sum(len(checkpointed(graphs)) for graphs in self.all_graphs):
            lines.append(f"  recomputes {counted(marked, 'operation')} for torch.utils.checkpoint: {INSTEAD}")
        if self.capture == "dynamo":
            graphs = "one graph" if self.pieces == 1 else f"{self.pieces} graphs"
            lines.append(f"  captured by TorchDynamo, with guards of its own, in {graphs}: {self.handed_over}")
            lines += [f"  stays in Python: {reason}" for reason in self.breaks]
        elif self.detour is not None:
            lines.append(f"  through AOTAutograd's wrappers: {self.detour}")
        else:
            lines.append(f"  straight from the guard, in {self.tier}")
        return "\n".join(lines)

    def __str__(self) -> str:
        launched, text = self._told
        heading, *rest = (wrapped(printable(line), terminal_width()) for line in text.split("\n"))
        if self.timeline is not None:
            rest.insert(1, wrapped(f"  its first call took {in_a_line(self.timeline)}", terminal_width()))
        way = "\n".join([paint_of(None)(heading, "heading"), *rest])
        return way if launched is None else f"{way}\n\n{launched}"

    def html(self) -> str:
        """A page of its own, without scripts, with the code of each kernel to unfold."""
        return plain_page(f"aotkit: {self.subject}", self._repr_html_())

    def json(self) -> dict[str, Any]:
        """All of it as numbers and texts, for `json.dumps`."""
        launched, _ = self._told
        names = ("eager", "capture", "handed_over", "pieces", "breaks", "detour", "tier", "entries")
        way = {name: getattr(self, name) for name in names}
        found = None if launched is None else kernels_json(launched)
        timeline = None if self.timeline is None else self.timeline.json()
        return {"schema": 1, "subject": self.subject, **way, "launched": found, "timeline": timeline}

    def code(self, role: str) -> str:
        """The generated code of the kernels of one graph, "forward" or "backward"; "" where there is none.

        Raises:
            ValueError: there is no such graph.
        """
        if role not in (known := self.kernels.left_out):
            raise ValueError(f"the graphs are {', '.join(map(repr, known))}; there is no {role!r}.")
        found = {k.kernel.name: k.kernel.code for k in self.kernels.of(role) if k.kernel.code}
        return "\n\n".join(f"# {printable(name)}\n{code}" for name, code in found.items())

    def _repr_html_(self) -> str:
        return kernels_html(*self._told) + (self.timeline._repr_html_() if self.timeline is not None else "")

    @functools.cached_property
    def _told(self) -> "tuple[Kernels | None, str]":
        """What it launches, if that can be known, and the words that come before."""
        if self.eager is not None:
            return None, self.way
        try:
            return self.kernels, self.way
        except TraceError as e:
            return None, f"{self.way}\n\n{e}"

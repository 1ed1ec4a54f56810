"""What was found."""

from dataclasses import dataclass
from pathlib import Path

from torch.fx import GraphModule

from aotkit.checking import Budget
from aotkit.inspection import SourceLine


class NotFound(Exception):
    """Not for users: no culprit; the message says why."""


def ensure_time(budget: Budget) -> None:
    """Raises NotFound where the time for a search is used up."""
    if budget.is_used_up:
        raise NotFound("there was no more time; error.report.find_culprit() looks for it as long as it takes")


@dataclass(frozen=True)
class Culprit:
    """The first wrong node of a compilation.

    Attributes:
        part: where it is: "forward graph", "backward graph", "partition", "decompositions", "joint pass" or "trace".
        node: its name in that graph, in the joint graph for the last four; None if it could not be told.
        operator: what it calls, such as `aten.mul.Tensor`.
        line: the user's, that it was traced from.
        difference: how it is off.
        graph: the smallest graph found that is compiled wrongly, for the forward and the backward graph; for the
            partition, the smallest joint graph found that is cut wrongly.
        script: a program that compiles or cuts this graph, and exits with 1 while it is wrong; None if there is no
            graph, or none that can be written.
    """

    part: str
    node: str | None = None
    operator: str | None = None
    line: SourceLine | None = None
    difference: str = ""
    graph: GraphModule | None = None
    script: str | None = None

    def write(self, path: str | Path) -> None:
        """Write the script to a file; raises ValueError where there is none."""
        if self.script is None:
            raise ValueError(
                f"there is no script for this fault of the {self.part}: nothing that a script can hold shows it alone."
            )
        Path(path).write_text(self.script, encoding="utf-8")

    def __str__(self) -> str:
        advice = '; write a script with error.report.culprit.write("repro.py")' if self.script else ""
        whose = "PyTorch's trace" if self.part == "trace" else f"the {self.part}"
        if self.node is None:
            return f"{whose} is wrong: the graphs differ from eager without any compiler{advice}"
        where = f", at {self.line}: {self.line.code}" if self.line else ""
        operator = f" ({self.operator})" if self.operator else ""
        return f"first wrong: {self.node}{operator} of {whose}{where}{advice}"

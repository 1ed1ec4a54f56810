"""What `python -m aotkit bench partitioners` found, as a table and as JSON."""

import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any

from aotkit.benchmark.evaluation import Evaluation
from aotkit.benchmark.kernels import DEVICES
from aotkit.benchmark.outcome import Outcome
from aotkit.text import grouped

HEADING = (
    "model", "partition", "saved", "peak", "fused peak", "kernels", *(f"{name} ms" for name in DEVICES),
    "repeated", "redrawn", "choice s", "all s",
)  # fmt: skip
RIGHT = [False, False, *[True] * (len(HEADING) - 2)]  # aligned right
EXPLANATION = (
    "Memory in MiB, without inputs and parameters. saved: from forward to backward, outputs apart. peak: most that is "
    "alive at a time, operator by operator, outputs and gradients included; fused: if all between matrix products and "
    "the like is one kernel. ms: estimated time of the fused kernels of forward and backward. repeated: GFLOP of "
    "matrix products, convolutions and attention that backward runs again. redrawn: random operators that backward "
    "runs again, with other numbers: gradients are wrong. choice: CPU time in which the partitioner chose what to "
    "save, if it says so; all: of all that it did. impossible: so are smaller limits, which are left out."
)
WIDTH = 118


@dataclass
class Row(Outcome):
    """One partitioner on one model.

    Attributes:
        partition: the partitioner's name; "" if the model cannot be had.
        nodes: of the joint graph.
        choice_seconds: CPU time in which the partitioner chose what to save, as it says.
        seconds: CPU time of the process while the partitioner ran.
    """

    model: str
    partition: str = ""
    nodes: int = 0
    choice_seconds: float | None = None
    seconds: float | None = None
    evaluation: Evaluation | None = None


@dataclass
class PartitionersReport:
    """All rows; those of one model cut copies of the same joint graph.

    Attributes:
        decompositions: "inductor" or "none".
        random: "shared" or "torch".
    """

    torch: str
    decompositions: str
    random: str
    rows: list[Row] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every partitioner cut every model that could be had."""
        return not any(row.failed for row in self.rows if row.partition)

    def json(self) -> dict[str, Any]:
        """Everything that was found, of types that the json module takes: bytes, seconds, FLOP."""
        return {
            "schema": 1,
            "torch": self.torch,
            "decompositions": self.decompositions,
            "random": self.random,
            "devices": [
                {"name": name, "bandwidth": device.bandwidth, "rate": device.flops, "launch": device.launch}
                for name, device in DEVICES.items()
            ],
            "rows": [asdict(row) for row in self.rows],
        }

    def __str__(self) -> str:
        table = [HEADING, *(_cells(row) for row in self.rows if row.partition)]
        lines = [f"torch {self.torch}, decompositions: {self.decompositions}, random numbers: {self.random}"]
        lines += grouped(table, RIGHT)
        notes = [EXPLANATION, *(_problem(row) for row in self.rows if row.problem)]
        return "\n".join([*lines, "", *(textwrap.fill(note, WIDTH, subsequent_indent="  ") for note in notes)])


def _problem(row: Row) -> str:
    return ": ".join(filter(None, (row.model, row.partition, row.problem)))


def _cells(row: Row) -> tuple[str, ...]:
    found = row.evaluation
    if found is None:
        return (row.model, row.partition, row.word, *[""] * (len(HEADING) - 3))
    memory = (found.saved_bytes, found.peak_bytes, found.fused_peak_bytes)
    return (
        row.model,
        row.partition,
        *(f"{nbytes / 2**20:,.0f}" for nbytes in memory),
        str(found.kernels),
        *(f"{found.seconds[name] * 1e3:.2f}" for name in DEVICES),
        f"{found.repeated_flops / 1e9:,.0f}" if found.repeated else "",
        str(found.redrawn) if found.redrawn else "",
        "" if row.choice_seconds is None else f"{row.choice_seconds:.2f}",
        f"{row.seconds:.2f}",
    )

"""What becomes of a call, in words."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """How a call with certain arguments runs, and why; `print` it.

    Attributes:
        subject: the function, its backend and its partitioner.
        eager: why the call runs eagerly, or None if it runs compiled graphs.
        detour: why it takes AOTAutograd's wrappers into the graphs, or None if it goes straight to them.
        tier: the language of the code between the guards and the graphs: "C++", "Python", or None in eager.
        entries: how many kinds of inputs the function is compiled for now.
    """

    subject: str
    eager: str | None = None
    detour: str | None = None
    tier: str | None = None
    entries: int = 0

    def __str__(self) -> str:
        kinds = f"{self.entries} kind{'s' if self.entries != 1 else ''} of inputs"
        lines = [self.subject, f"  compiled for {kinds} so far"]
        if self.eager is not None:
            return "\n".join([*lines, f"  such a call runs eagerly: {self.eager}"])
        lines.append("  such a call runs compiled graphs")
        if self.detour is not None:
            lines.append(f"  through AOTAutograd's wrappers: {self.detour}")
        else:
            lines.append(f"  straight from the guard, in {self.tier}")
        return "\n".join(lines)

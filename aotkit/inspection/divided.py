"""How graphs are divided among backends, in words."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from aotkit.interfaces import Regions
from aotkit.text import printable

if TYPE_CHECKING:
    from aotkit.graphs import Graphs


def region_lines(graphs: "Graphs") -> list[str]:
    """For each graph that is divided, what each backend has of it, and why the rest is in no region."""
    return [line for name, regions in graphs.regions.items() for line in _lines(name, regions)]


def _lines(name: str, divided: Regions) -> list[str]:
    sizes = {backend: [len(r.nodes) for r in divided.regions if r.backend == backend] for backend in divided.backends}
    parts = [f"{_count(len(s), 'region')} of {printable(backend)} ({_sizes(s)})" for backend, s in sizes.items() if s]
    lines = [f"regions of {name}: {', '.join(parts) or 'none'}; {_count(len(divided.outside), 'operation')} outside"]
    for region in divided.regions:
        if region.failure is not None:
            lines.append(
                f"  {printable(region.backend)} failed on {', '.join(region.nodes)}: {printable(region.failure)}"
            )
    nodes: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node, reasons in divided.outside.items():
        nodes[reasons].append(node)
    for reasons, group in sorted(nodes.items(), key=lambda item: -len(item[1])):
        each = (f"{printable(b)}: {printable(reason)}" for b, reason in zip(divided.backends, reasons, strict=True))
        lines.append(f"  {'; '.join(each)}: {', '.join(group)}")
    return lines


def _sizes(sizes: list[int]) -> str:
    """`2 x 40 + 13 operations`."""
    texts = (str(size) if n == 1 else f"{n} x {size}" for size, n in sorted(Counter(sizes).items(), reverse=True))
    return f"{' + '.join(texts)} operation{'s' if sum(sizes) != 1 else ''}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"

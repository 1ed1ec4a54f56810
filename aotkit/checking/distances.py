"""How far values are from what float64 gives, as a whole: all that is asked about it in one pass."""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from aotkit.checking.in_pieces import blocks, magnitude, pieces


class Sample(NamedTuple):
    """A value of one run, by its float64 value.

    Attributes:
        distance: the root mean square of the distances of the elements.
        share: how much of the float64 value is in it: 1 where all is, -1 where the sign is another.
    """

    distance: float
    share: float


@dataclass(frozen=True)
class Distances:
    """Of a value from its float64 value, over the elements in which that and eager's are finite.

    Attributes:
        sample: the value.
        furthest: the largest distance that is finite, wherever eager's is.
        count: how many elements there are.
        size: the root mean square of the float64 values.
        finite: whether no element of the three is NaN or infinite, as far as was looked.
    """

    sample: Sample
    furthest: float
    count: int
    size: float
    finite: bool


def distances(exact: Tensor, want: Tensor, *values: Tensor) -> list[Distances]:
    """Those of each of some values; `want` is eager's."""
    count, size, finite = 0, 0.0, True
    sums = [[0.0, 0.0, 0.0] for _ in values]  # squares of distances, products, the largest distance
    for e, w, *vs in _parts(exact, want, *values):
        found = _finite_sums(e, w, vs)
        if found is None:
            found = _sums(e, w, vs)
        here, squares, *rest = found
        # Where one of the numbers is not finite, neither is the sum; a square that is none makes one of it, too.
        finite = finite and here == e.numel() and all(map(math.isfinite, (squares, *rest)))
        count, size = count + int(here), size + squares
        for total, far, along, furthest in zip(sums, rest[::3], rest[1::3], rest[2::3], strict=True):
            total[:] = total[0] + far, total[1] + along, max(total[2], furthest)
    root = (size / count) ** 0.5 if count else 0.0
    return [
        Distances(
            Sample((far / count) ** 0.5 if count else 0.0, along / size if size else 1.0), furthest, count, root, finite
        )
        for far, along, furthest in sums
    ]


def _parts(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return (block for piece in pieces(*tensors) for block in blocks(*piece) if block[0].numel())


def _finite_sums(e: Tensor, w: Tensor, values: Sequence[Tensor]) -> list[float] | None:
    """What `_sums` gives for numbers that are all finite, and whose squares are; else None."""
    if e.dtype is not torch.float64 or not e.is_cpu:  # on a GPU, a dot product takes memory for a library
        return None
    # A dot product reads values once and writes none, and tells at its end whether all were finite.
    found = [torch.dot(e, e)]
    for v in values if any(v is w for v in values) else (*values, w):
        v = v.to(e.dtype)
        far = v - e
        found += [torch.dot(far, far), torch.dot(v, e), *far.aminmax()]
    size, *rest = torch.stack(found).tolist()  # at once: a device is waited for each time
    if not all(map(math.isfinite, (size, *rest))):
        return None
    result = [float(e.numel()), size]
    for i in range(0, 4 * len(values), 4):
        far, along, low, high = rest[i : i + 4]
        result += [far, along, max(abs(low), abs(high))]
    return result


def _sums(e: Tensor, w: Tensor, values: Sequence[Tensor]) -> list[float]:
    """How many elements count, the squares of the float64 values, and three numbers for each of some values.

    These are the squares of the distances, the products with the float64 values, and the largest distance.
    """
    seen = w.isfinite()
    finite = seen & e.isfinite()
    exact = torch.where(finite, e, 0)
    found = [finite.sum(), exact.abs().square().sum()]
    for v in values:
        furthest = ((v - e).abs().nan_to_num(0.0, 0.0, 0.0) * seen).max()
        v = torch.where(finite, v.to(e.dtype), 0)
        found += [(v - exact).abs().square().sum(), (v * exact.conj()).sum().real, furthest]
    return torch.stack([x.to(torch.float64) for x in found]).tolist()


def sample_of(values: Tensor, exact: Tensor, want: Tensor) -> Sample:
    """A value of one run, where its float64 value and eager's are finite."""
    return distances(exact, want, values)[0].sample


def distance(values: Tensor, exact: Tensor, want: Tensor) -> float:
    """The root mean square of the distance from float64 values, where these and eager's are finite."""
    return sample_of(values, exact, want).distance


def size_of(exact: Tensor, want: Tensor) -> float:
    """The root mean square of float64 values, where they and eager's are finite."""
    return distances(exact, want, want)[0].size


@dataclass(frozen=True, eq=False)
class Compared:
    """A compiled value, eager's and the float64 value. What is found out about them is kept.

    Attributes:
        got: the compiled one.
        want: eager's.
        exact: the one in float64.
    """

    got: Tensor
    want: Tensor
    exact: Tensor

    @functools.cached_property
    def _found(self) -> list[Distances]:
        return distances(self.exact, self.want, self.want, self.got)

    @property
    def of_eager(self) -> Distances:
        """Eager's distance from float64."""
        return self._found[0]

    @property
    def of_compiled(self) -> Distances:
        """The compiled value's distance from float64."""
        return self._found[1]

    @functools.cached_property
    def largest(self) -> float:
        """The magnitude of eager's largest element."""
        return magnitude(self.want)

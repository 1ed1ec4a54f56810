"""Random numbers as plain tensor arithmetic: the same ones in every backend, in eager, and when they are recomputed.

Word `i` of draw `n` of a call is a hash of (seed, n, i). The seed is one integer for each call, drawn from torch's CPU
generator: `torch.manual_seed` and `torch.get_rng_state` govern it. `operators` makes distributions of the words.

The hash is in 32-bit arithmetic, which CPUs and GPUs do in vectors; the keys, once for each draw, are in 64-bit.

In graphs, words are one operator, `aotkit::random_words`, for compilers that know it. For the others, whatever their
own table of decompositions, it becomes the arithmetic: `DECOMPOSED`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Weyl increment and finalizer of SplitMix64. Source: Steele, Lea and Flood, "Fast splittable pseudorandom number
# generators", OOPSLA 2014, with the multipliers of David Stafford's variant 13.
_GOLDEN = 0x9E3779B97F4A7C15
_KEY_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
# "triple32", the three-multiply hash with the least known bias. Source: Chris Wellons, "Prospecting for Hash
# Functions", https://nullprogram.com/blog/2018/07/31/.
_MULTIPLIERS = (0xED5AD4BB, 0xAC4C1B51, 0x31848BAB)

LANES = 4
LARGEST_INT32 = 2**31 - 1


class SeedNeeded(BaseException):
    """A function draws random numbers, which its inputs must then have a seed for.

    No `Exception`, so that no handler in the function takes it for one of its own.
    """


@dataclass
class Draws:
    """The random words of one call.

    Attributes:
        seed: a 0-dimensional int64 tensor on the CPU, or None: then drawing raises SeedNeeded.
        used: how many draws have been made.
    """

    seed: Tensor | None
    used: int = 0

    def next(self, shape: Sequence[int], device: torch.device, words: int = 1) -> list[Tensor]:
        """Uniform int32 words for the next draw: for each of `words` lanes, a tensor of this shape.

        Raises:
            SeedNeeded: there is no seed.
        """
        if self.seed is None:
            raise SeedNeeded
        first = self.used * LANES
        self.used += 1
        return [WORDS(self.seed, first + lane, shape, device) for lane in range(words)]


_SEED = torch.empty((), dtype=torch.int64, device="cpu")


def new_seed() -> Tensor:
    """The seed of a call, drawn from torch's CPU generator."""
    return torch.empty_like(_SEED).random_()  # its options would have to be parsed in each call


def random_words(seed: Tensor, number: int, size: Sequence[int], device: torch.device) -> Tensor:
    """The words with this number, a tensor of this size: the arithmetic that the operator stands for."""
    count = math.prod(size)
    index = torch.arange(count, dtype=index_type(count), device=device)
    return hashed(index, *key(seed, number)).view(size)


def index_type(count: int) -> torch.dtype:
    """The type of the numbers of so many elements. An open count is held to it."""
    return torch.int64 if count > LARGEST_INT32 else torch.int32


def key(seed: Tensor, number: Any) -> tuple[Tensor, Tensor]:
    """Two int32 tensors that depend on all bits of the seed and of the number, an integer or an int64 tensor."""
    z = seed + (_signed(_GOLDEN * (number + 1), 64) if isinstance(number, int) else (number + 1) * _signed(_GOLDEN, 64))
    z = (z ^ shifted(z, 30, 64)) * _signed(_KEY_MULTIPLIERS[0], 64)
    z = (z ^ shifted(z, 27, 64)) * _signed(_KEY_MULTIPLIERS[1], 64)
    z = z ^ shifted(z, 31, 64)
    return z.to(torch.int32), (z >> 32).to(torch.int32)


def hashed(index: Tensor, low_key: Tensor, high_key: Tensor) -> Tensor:
    """A uniform int32 word for each element of an int32 or int64 index."""
    if index.dtype is torch.int64:
        high_key = high_key + (index >> 32).to(torch.int32) * _signed(_GOLDEN, 32)
        index = index.to(torch.int32)
    x = (index ^ shifted(index, 17) ^ low_key) * _signed(_MULTIPLIERS[0])
    x = x ^ shifted(x, 11)
    y = x * _signed(_MULTIPLIERS[1]) + high_key  # one instruction
    y = (y ^ shifted(y, 15)) * _signed(_MULTIPLIERS[2])
    # A hash that can be undone would give no word twice, where of n random words n^2 / 2^33 come again.
    return (y ^ shifted(y, 14)) ^ x


def shifted(x: Tensor, by: int, bits: int = 32) -> Tensor:
    """A signed integer shifted to the right, with zeros coming in: torch repeats the sign."""
    return (x >> by) & ((1 << (bits - by)) - 1)


def _signed(constant: int, bits: int = 32) -> int:
    """The number that has the same lowest bits as `constant` in two's complement."""
    constant &= (1 << bits) - 1
    return constant - (1 << bits) if constant >> (bits - 1) else constant


def _without_values(seed: Tensor, number: int, size: Sequence[int], device: torch.device) -> Tensor:
    index_type(math.prod(size))
    return torch.empty(size, dtype=torch.int32, device=device)


_LIBRARY = torch.library.Library("aotkit", "DEF")  # type: ignore[no-untyped-call]
# Pointwise: what compilers and partitioners ask is whether it fuses, and is cheap to compute again.
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "random_words(Tensor seed, int number, SymInt[] size, Device device) -> Tensor",
    tags=(torch.Tag.pointwise, torch.Tag.pt2_compliant_tag),
)
_LIBRARY.impl("random_words", random_words, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("aotkit::random_words", _without_values, lib=_LIBRARY)
WORDS = torch.ops.aotkit.random_words.default

DECOMPOSED: dict[Any, Callable[..., Any]] = {WORDS: random_words}


def kept(*args: Any) -> Any:
    """In the place of a decomposition: the operator stays as it is."""
    return NotImplemented

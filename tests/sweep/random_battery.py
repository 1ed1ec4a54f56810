"""Statistical tests of the words that `aotkit.random` draws, and of the generators that it could have used instead.

`python -m tests.sweep.random_battery LOG2_WORDS [GENERATOR ...]` prints the least p-value; RANDOM.md has the results.
"""

import math
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch

from aotkit.random.draws import hashed, key

CHUNK = 2**20
# Of random 32x32 matrices over GF(2): rank 32, 31, and less.
RANK_SHARES = np.array([0.2887880952, 0.5775761902, 0.1336357146])
GOLDEN = np.uint32(0x9E3779B9)
Stream = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def ours(index: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """What aotkit uses: triple32 with a second key and a feed-forward."""
    words = hashed(*(torch.from_numpy(np.ascontiguousarray(x).view(np.int32)) for x in (index, low, high)))
    return words.numpy().view(np.uint32)


def two_multiplies(index: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """lowbias32 with its keys in the same places. Source: https://nullprogram.com/blog/2018/07/31/."""
    x = index + low
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = (x ^ x >> np.uint32(15) ^ high) * np.uint32(0x846CA68B)
    return x ^ x >> np.uint32(16)


def two_multiplies_forward(index: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The same with a feed-forward."""
    x = index + low
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = x ^ x >> np.uint32(15)
    y = (x ^ high) * np.uint32(0x846CA68B)
    return y ^ y >> np.uint32(16) ^ x


def three_multiplies(index: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """triple32 with its keys in the same places, and no feed-forward."""
    x = index + low
    x = (x ^ x >> np.uint32(17)) * np.uint32(0xED5AD4BB)
    x = (x ^ x >> np.uint32(11) ^ high) * np.uint32(0xAC4C1B51)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x31848BAB)
    return x ^ x >> np.uint32(14)


def philox(rounds: int) -> Stream:
    """Philox-4x32. Source: Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", SC 2011."""

    def words(index: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        counter = index >> np.uint32(2)
        c = [counter, np.zeros_like(counter), np.zeros_like(counter), np.zeros_like(counter)]
        for _ in range(rounds):
            a, b = c[0].astype(np.uint64) * np.uint64(0xD2511F53), c[2].astype(np.uint64) * np.uint64(0xCD9E8D57)
            top_a, top_b = (a >> np.uint64(32)).astype(np.uint32), (b >> np.uint64(32)).astype(np.uint32)
            c = [top_b ^ c[1] ^ low, b.astype(np.uint32), top_a ^ c[3] ^ high, a.astype(np.uint32)]
            low, high = low + GOLDEN, high + np.uint32(0xBB67AE85)
        return np.choose(index & np.uint32(3), c)

    return words


GENERATORS: dict[str, Stream] = {
    "aotkit": ours,
    "two multiplies": two_multiplies,
    "two, fed forward": two_multiplies_forward,
    "three multiplies": three_multiplies,
    "Philox-4x32-7": philox(7),
    "Philox-4x32-10": philox(10),
}


def keys_of(seeds: torch.Tensor, number: int) -> tuple[np.ndarray, np.ndarray]:
    low, high = key(seeds, number)
    return low.numpy().view(np.uint32), high.numpy().view(np.uint32)


def one_draw(stream: Stream, words: int) -> Iterator[np.ndarray]:
    """The elements of one large draw."""
    low, high = keys_of(torch.tensor([2026]), 0)
    for start in range(0, words, CHUNK):
        yield stream(np.arange(start, start + CHUNK, dtype=np.uint32), low, high)


def many_draws(stream: Stream, words: int) -> Iterator[np.ndarray]:
    """Element after element, of 1024 draws of one call side by side: neighbours are of different operators."""
    keys = [keys_of(torch.tensor([2026]), 4 * n) for n in range(1024)]
    low, high = (np.concatenate(k)[None] for k in zip(*keys, strict=True))
    for start in range(0, words // 1024, CHUNK // 1024):
        index = np.arange(start, start + CHUNK // 1024, dtype=np.uint32)[:, None]
        yield stream(*(np.array(a) for a in np.broadcast_arrays(index, low, high))).ravel()


def many_calls(stream: Stream, words: int) -> Iterator[np.ndarray]:
    """The first 4 elements of calls with consecutive seeds."""
    for start in range(0, words // 4, CHUNK // 4):
        low, high = (k[:, None] for k in keys_of(torch.arange(start, start + CHUNK // 4), 0))
        index = np.arange(4, dtype=np.uint32)[None]
        yield stream(*(np.array(a) for a in np.broadcast_arrays(index, low, high))).ravel()


LAYOUTS = {"one draw": one_draw, "many draws": many_draws, "many calls": many_calls}


def normal_p(z: float) -> float:
    """Two-sided."""
    return math.erfc(abs(z) / math.sqrt(2))


def chi_square_p(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """Upper tail, by the approximation of Wilson and Hilferty; one constraint."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = counts.size - 1
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))


class Battery:
    """Collects counts over the chunks of a stream."""

    def __init__(self) -> None:
        self.words = 0
        self.bytes = np.zeros((4, 256))
        self.halves = np.zeros((2, 65536))
        self.pairs = {lag: np.zeros(65536) for lag in (1, 2, 4, 1024)}
        self.low_pairs = np.zeros(65536)
        self.distances = np.zeros(33)
        self.products = dict.fromkeys((1, 2, 3, 4, 8, 1024), 0.0)
        self.bit_pairs = np.zeros((32, 32))
        self.gaps = np.zeros(64)
        self.collisions = 0.0
        self.spacings = 0.0
        self.groups = 0
        self.ranks = np.zeros(3)

    def add(self, w: np.ndarray) -> None:
        self.words += w.size
        octets = w.view(np.uint8).reshape(-1, 4)
        for i in range(4):
            self.bytes[i] += np.bincount(octets[:, i], minlength=256)
        halves = w.view(np.uint16).reshape(-1, 2)
        for i in range(2):
            self.halves[i] += np.bincount(halves[:, i], minlength=65536)
        top, bottom = octets[:, 3].astype(np.int64), octets[:, 0].astype(np.int64)
        for lag, counts in self.pairs.items():
            counts += np.bincount(top[:-lag] * 256 + top[lag:], minlength=65536)
        self.low_pairs += np.bincount(bottom[:-1] * 256 + bottom[1:], minlength=65536)
        self.distances += np.bincount(np.bitwise_count(w[1:] ^ w[:-1]), minlength=33)
        u = w.astype(np.float64) * 2.0**-32 - 0.5
        for lag in self.products:
            self.products[lag] += float(u[:-lag] @ u[lag:]) * 12 / math.sqrt(u.size - lag)
        bits = np.unpackbits(octets[:65536], axis=1).astype(np.float32) - 0.5
        self.bit_pairs += bits.T @ bits * 4 / 256
        (rare,) = np.nonzero(w < np.uint32(round(2**32 * 0.1)))
        self.gaps += np.bincount(np.minimum(np.diff(rare) - 1, 63), minlength=64)
        ordered = np.sort(w)
        self.collisions += np.count_nonzero(ordered[1:] == ordered[:-1])
        days = np.sort(w.reshape(-1, 4096), axis=1)
        gaps = np.sort(np.diff(days, axis=1), axis=1)
        self.spacings += np.count_nonzero(gaps[:, 1:] == gaps[:, :-1])
        self.groups += 1
        ranks = rank_deficits(w[: 32 * 1024].reshape(-1, 32))
        self.ranks += np.bincount(np.minimum(ranks, 2), minlength=3)

    def p_values(self) -> dict[str, float]:
        n, chunks = self.words, self.groups
        binomial = np.array([math.comb(32, k) for k in range(33)]) / 2**32
        near = slice(4, 29)  # enough of each
        distances = self.distances[near]
        gaps = np.append(0.1 * 0.9 ** np.arange(63), 0.9**63)
        off_diagonal = self.bit_pairs[np.triu_indices(32, 1)] / math.sqrt(chunks)
        # Repeated words among 2^20; repeated spacings among 4096 birthdays in 2^32 days, Marsaglia's n^3 / 4m.
        repeats, spacings = chunks * CHUNK**2 / 2**33, chunks * CHUNK / 4096 * (4096**3 / 2**34)
        found = {f"byte {i}": chi_square_p(c, n / 256) for i, c in enumerate(self.bytes)}
        found |= {f"16 bits, {i}": chi_square_p(c, n / 65536) for i, c in enumerate(self.halves)}
        found |= {f"top bytes, lag {lag}": chi_square_p(c, c.sum() / 65536) for lag, c in self.pairs.items()}
        found |= {f"correlation, lag {lag}": normal_p(z / math.sqrt(chunks)) for lag, z in self.products.items()}
        found |= {
            "bottom bytes, lag 1": chi_square_p(self.low_pairs, self.low_pairs.sum() / 65536),
            "Hamming distance": chi_square_p(distances, distances.sum() * binomial[near] / binomial[near].sum()),
            "pairs of bits": chi_square_of_squares(off_diagonal),
            "gaps": chi_square_p(self.gaps, self.gaps.sum() * gaps),
            "collisions": normal_p((self.collisions - repeats) / math.sqrt(repeats)),
            "birthday spacings": normal_p((self.spacings - spacings) / math.sqrt(spacings)),
            "matrix rank": chi_square_p(self.ranks, self.ranks.sum() * RANK_SHARES),
        }  # fmt: skip
        return found


def chi_square_of_squares(z: np.ndarray) -> float:
    freedom, statistic = z.size, float((z**2).sum())
    spread = 2 / (9 * freedom)
    return 0.5 * math.erfc(((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) / math.sqrt(2))


def rank_deficits(rows: np.ndarray) -> np.ndarray:
    """32 minus the rank over GF(2) of each 32x32 matrix; a row is a word."""
    rows, number = rows.copy(), np.arange(len(rows))
    rank = np.zeros(len(rows), np.int64)
    for bit in range(32):
        has = (rows >> np.uint32(bit) & np.uint32(1)).astype(bool) & (np.arange(32) >= rank[:, None])
        found, pivot = has.any(1), has.argmax(1)
        place = np.minimum(rank, 31)
        row = rows[number, pivot]
        rows[number[found], pivot[found]] = rows[number[found], place[found]]
        rows[number[found], place[found]] = row[found]
        below = (rows >> np.uint32(bit) & np.uint32(1)).astype(bool) & (np.arange(32) > place[:, None]) & found[:, None]
        rows = np.where(below, rows ^ row[:, None], rows)
        rank += found
    return 32 - rank


def avalanche(stream: Stream) -> float:
    """The largest distance from 1/2 of the share of inputs for which flipping a bit flips a bit of the word, in
    standard deviations, over all bits of the index; the largest of 960 is about 3.5."""
    random = np.random.default_rng(1)
    index, low, high = (random.integers(0, 2**32, 2**16, dtype=np.uint32) for _ in range(3))
    base, worst = stream(index, low, high), 0.0
    for bit in range(2, 32):  # the lowest choose the word of one of Philox's blocks
        words = (stream(index ^ np.uint32(1 << bit), low, high) ^ base).view(np.uint8).reshape(-1, 4)
        changed = np.unpackbits(words, axis=1).sum(0, dtype=np.int64)
        worst = max(worst, float(np.abs(changed - 2**15).max()) / 2**7)
    return worst


def p_values(generator: str, layout: str, words: int) -> dict[str, float]:
    """A p-value for each test of `words` words, a multiple of 2^20."""
    battery = Battery()
    for chunk in LAYOUTS[layout](GENERATORS[generator], words):
        battery.add(np.ascontiguousarray(chunk))
    return battery.p_values()


def main(log2_words: int, generators: list[str]) -> None:
    for generator in generators:
        print(f"{generator}: avalanche {avalanche(GENERATORS[generator]):.1f}", flush=True)
        for layout in LAYOUTS:
            found = p_values(generator, layout, 2**log2_words)
            bad = {test: f"{p:.1e}" for test, p in found.items() if p < 1e-4}
            least = min(found, key=found.__getitem__)
            print(
                f"  {layout}: {len(found)} tests, least p {found[least]:.1e} ({least}); below 1e-4: {bad}", flush=True
            )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or list(GENERATORS))

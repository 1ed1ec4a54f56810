"""What counts as rounding is judged in blocks, and mostly without a search: as one would write it down."""

import pytest
import torch

from aotkit.checking import in_pieces, rounding
from aotkit.checking.comparison import compare_elements
from aotkit.checking.distances import Compared
from aotkit.checking.in_pieces import magnitude
from aotkit.checking.rounding import Spread, allowed_difference, tolerance
from aotkit.checking.similar import are_near_as_similar

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64)
COUNTS = (1, 2, 5, 8, 17, 40, 150)


# As one would write it down, of one piece.


def plainly_by_elements(got, want, exact, jumps, size, scale):
    real, g, w = want.real.dtype, got.to(exact.dtype), want.to(exact.dtype)
    off, finite = (w - exact).abs(), w.isfinite()
    limit = max(tolerance(real) * scale, min(2 * plainly_furthest(want, exact, want), rounding.MOST_LOWERED * scale))
    limit = max(limit, rounding.WORSE_THAN_EAGER * size)
    own, noise = (g - exact).abs(), plainly_largest_among_similar(torch.maximum(jumps, off), w.abs(), g.abs())
    as_good_as_eager = (own <= rounding.WORSE_THAN_EAGER * noise) & (own <= limit)
    within_jumps = own <= allowed_difference(w, real, magnitude(want)) + 2 * jumps
    return bool((as_good_as_eager | within_jumps | ~finite).all())


def plainly_largest_among_similar(errors, sizes, got_sizes):
    ordered, order = sizes.nan_to_num().sort(stable=True)
    so_far = errors.nan_to_num()[order].cummax(0).values
    bounds = rounding.WORSE_THAN_EAGER * torch.maximum(sizes, got_sizes).nan_to_num()
    found = torch.searchsorted(ordered, bounds, right=True)
    return so_far[found.clamp(min=max(1, min(8, len(ordered) // 8))) - 1]


def plainly_furthest(values, exact, want):
    return float(((values - exact).abs().nan_to_num(0.0, 0.0, 0.0) * want.isfinite()).max())


def plainly_sampled(values, exact, want):
    """The root mean square of the distances, and how much of the float64 value is in it."""
    finite = want.isfinite() & exact.isfinite()
    v, e = values[finite].to(exact.dtype), exact[finite]
    size = float(e.abs().square().sum())
    share = float((v * e.conj()).sum().real) / size if size else 1.0
    return (float((v - e).abs().square().mean()) if len(e) else 0.0) ** 0.5, share


# What is judged.


def drawn(generator, dtype, count):
    """(compiled, eager's, float64, jumps): sizes and errors of many orders, ties, zeros, and what is hardly right."""

    def one(*choices):
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    def numbers(low, high):
        exponents = torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low
        return 10.0 ** (exponents.round() if tied else exponents)

    def signed(values):
        return values * (torch.randint(2, (count,), generator=generator) * 2 - 1)

    tied, wide = one(True, False), torch.complex128 if dtype.is_complex else torch.float64
    eps = torch.finfo(dtype).eps
    sizes = one(numbers(-3, 3), numbers(-1, 0), torch.ones(count, dtype=torch.float64))
    exact = signed(sizes * (numbers(-1, 0) if one(0, 0, 1) else 1) * (numbers(0, 0.3) > one(0, 1.5)))
    exact = exact.to(wide) * (1j if dtype.is_complex and one(True, False) else 1)
    errors = one(numbers(-1, 1), numbers(-1, 5), numbers(2, 3)) * eps * one(sizes, sizes.max(), sizes.sqrt())
    want = (exact + signed(errors)).to(dtype)
    jumps = one(torch.zeros(count, dtype=torch.float64), errors * numbers(-3, 1), errors.roll(1))
    noise = torch.maximum(jumps, (want.to(wide) - exact).abs())
    off = one(noise, plainly_largest_among_similar(noise, want.to(wide).abs(), want.to(wide).abs()), 2 * jumps)
    share = one(0.5, 1.0, 9.0, 9.9, 9.999999, 10.0, 10.000001, 12.0)
    several = torch.rand(count, generator=generator) < one(1.0, 1 / count, 0.5)
    got = torch.where(several, (exact + signed(share * off)).to(dtype), want)
    return got, want, exact, jumps


def unfinite(generator, got, want, exact, jumps):
    """The same with NaN or infinities in some."""
    for values in (got, want, exact):
        places = torch.rand(len(values), generator=generator) < 1.5 / len(values)
        if int(torch.randint(2, (), generator=generator)):
            values[places] = (float("nan"), float("inf"), -float("inf"))[int(torch.randint(3, (), generator=generator))]
    if int(torch.randint(2, (), generator=generator)):
        got[~want.isfinite()] = want[~want.isfinite()]


def judged(seed, dtype, count, finite):
    """(both verdicts on the elements, and on exactness) of some values."""
    generator = torch.Generator().manual_seed(seed)
    got, want, exact, jumps = drawn(generator, dtype, count)
    if not finite:
        unfinite(generator, got, want, exact, jumps)
    scale = magnitude(want) * (1, 1, 1e3)[seed % 3]
    compared, spread = Compared(got, want, exact), Spread(jumps)
    if seed % 2:
        spread.add((exact + (want - exact) * 1.5).to(exact.dtype), exact, want)
        jumps = spread.jumps
    plain = plainly_by_elements(got, want, exact, jumps, spread.size, scale)
    for mine, values in ((compared.of_eager, want), (compared.of_compiled, got)):
        sample = plainly_sampled(values, exact, want)
        assert tuple(mine.sample) == pytest.approx(sample, rel=1e-9, abs=1e-12 * max(map(abs, sample)), nan_ok=True)
        assert mine.furthest == plainly_furthest(values, exact, want)
        assert not mine.finite or all(x.isfinite().all() for x in (got, want, exact))
    assert compared.of_eager.count == int((want.isfinite() & exact.isfinite()).sum())
    return rounding._is_by_elements(compared, spread, scale), plain


@pytest.fixture(params=[8, 1 << 15])
def block(request, monkeypatch):
    monkeypatch.setattr(in_pieces, "BLOCK", request.param)


@pytest.mark.thinned
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_are_judged_as_one_would_write_it_down(dtype, finite, block):
    verdicts = [(seed, *judged(seed, dtype, COUNTS[seed % len(COUNTS)], finite)) for seed in range(140)]
    assert [seed for seed, mine, plain in verdicts if mine != plain] == []
    assert 14 < sum(plain for _, _, plain in verdicts) < 126  # both occur, and often


@pytest.mark.parametrize("count", range(1, 100, 9))
def test_similar_elements_are_found_as_if_all_were_sorted(count):
    """Of sizes of which many are the same, or exactly so many times as large; each as far off as it may be."""
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        sizes = 10.0 ** (torch.randint(2 + 3 * (seed % 5), (count,), generator=generator).double() * (1 + seed % 2))
        errors = torch.randint(1 + seed % 50, (count,), generator=generator).double()
        some = torch.cat([sizes.argmin()[None], torch.randperm(count, generator=generator)[: seed % 4]])
        own = 3 * plainly_largest_among_similar(errors, sizes, sizes)[some]
        parts = [(errors[:7], sizes[:7]), (errors[7:], sizes[7:])] if count > 7 else [(errors, sizes)]

        def are_near(own, some=some, sizes=sizes, parts=parts):
            return are_near_as_similar(own, rounding.WORSE_THAN_EAGER * sizes[some], lambda: iter(parts), 3)

        assert are_near(own)
        for one in range(len(own)):
            farther = own.clone()
            farther[one] += 1
            assert not are_near(farther)


def test_jumps_of_every_element_of_a_large_value_are_kept(monkeypatch):
    """As of the logits of a language model: few rows, each of them long."""
    monkeypatch.setattr(in_pieces, "PIECE", 64)
    exact = torch.arange(3 * 5 * 200.0, dtype=torch.float64).view(3, 5, 200)
    for values in (exact, exact.transpose(0, 2)):
        spread = Spread.around(values)
        assert not spread.jumps.any()
        spread.add(values + 2, values, values.float())
        spread.add(values - 1, values, values.float())
        assert (spread.jumps == 2).all()
        assert (Spread.around(values).jumps == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", [0, 1, 30])
def test_what_is_reported_of_elements_is_of_the_one_that_is_furthest_off(wrong, dtype, block):
    want = torch.linspace(-3, 4, 45).to(dtype)
    want[7], want[20] = float("inf"), float("nan")
    got = want.clone()
    got[10:13] *= 1 + torch.finfo(dtype).eps
    if wrong:
        got[30 : 30 + wrong] *= 1.25
    c, wide = compare_elements("it", got, want), torch.complex128 if dtype.is_complex else torch.float64
    finite = want.isfinite()
    difference = (got[finite].to(wide) - want[finite].to(wide)).abs()
    allowed = allowed_difference(want[finite].to(wide), want.real.dtype, magnitude(want))
    at = (difference / allowed).argmax()
    assert (c.error, c.allowed) == (float(difference[at]), float(allowed[at]))
    count = int((difference > allowed).sum())
    assert (c.problem is None) == (count == 0) == (not wrong)
    if wrong:
        assert f"differs by up to {float(difference.max()):.3g} in {count} of 45 elements" in c.problem
    for place, other in ((7, -float("inf")), (20, 1.0), (3, float("nan")), (44, float("inf"))):
        changed = got.clone()
        changed[place] = other
        assert compare_elements("it", changed, want).problem == "has NaN or infinity at other places than eager's"

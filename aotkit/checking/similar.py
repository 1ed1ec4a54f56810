"""How far off elements are that are of one size: what is far off among them is so by rounding."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# Among an eighth of all at least, up to eight: an element that is almost zero by chance tells nothing by itself.
EIGHTH, MOST = 8, 8

# How far off all elements are, and their sizes, none of them NaN or infinite, in parts.
Parts = Callable[[], Iterator[tuple[Tensor, Tensor]]]


def are_near_as_similar(own: Tensor, bounds: Tensor, parts: Parts, times: float) -> bool:
    """Whether each of some elements is no farther off, so many times, than the farthest among those of its size.

    Args:
        own: how far off these elements are.
        bounds: for each, the size up to which others count; at least its own in eager.
        parts: the elements among which to look; these are among them.
        times: how many times as far off they may be.
    """
    least = bounds.min()
    noise, among, count = own.new_zeros((), dtype=torch.float64), own.new_zeros((), dtype=torch.int64), 0
    for errors, sizes in parts():
        small = sizes <= least
        noise, among = torch.maximum(noise, (errors * small).max()), among + torch.count_nonzero(small)
        count += len(sizes)
    at_least = max(1, min(MOST, count // EIGHTH))
    # What is as near as those that count for all needs no search, which has to sort. Almost all are.
    enough = int(among) >= at_least
    if enough:
        rest = ~(own <= times * noise)
        own, bounds = own[rest], bounds[rest]
        if not len(own):
            return True
    found = [_candidates(*part, noise, bounds.max()) if enough else part for part in parts()]
    errors, sizes = (torch.cat(each) for each in zip(*found, strict=True))
    ordered, order = sizes.sort(stable=True)  # of equal sizes, the same ones everywhere
    so_far = torch.cat([noise.view(1) if enough else noise.new_zeros(1), errors[order]]).cummax(0).values
    last = torch.searchsorted(ordered, bounds, right=True)
    return bool((own <= times * so_far[last if enough else last.clamp(min=at_least)]).all())


def _candidates(errors: Tensor, sizes: Tensor, noise: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """The elements that are farther off, and not too large to count for any."""
    few = (errors > noise) & (sizes <= most)
    return errors[few], sizes[few]

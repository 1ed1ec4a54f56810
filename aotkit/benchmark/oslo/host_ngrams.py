"""No n-gram twice as transformers had it before 5.15: row by row, in Python, which waits for the device at each row."""

from collections import defaultdict

import torch
from torch import Tensor


class HostNoRepeatNGram:
    """A logits processor: -inf for each token that would repeat an n-gram.

    Args:
        ngram_size: n, at least 1.
    """

    def __init__(self, ngram_size: int) -> None:
        self.ngram_size = ngram_size

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores without what is forbidden.

        Args:
            input_ids: [rows, tokens].
            scores: [rows, vocabulary].
        """
        if input_ids.shape[1] < self.ngram_size:
            return scores
        scores = scores.clone()
        for row, ids in enumerate(input_ids):
            tokens = ids.tolist()
            followers = defaultdict(list)
            for start in range(len(tokens) - self.ngram_size + 1):
                *before, last = tokens[start : start + self.ngram_size]
                followers[tuple(before)].append(last)
            newest = tuple(tokens[len(tokens) - self.ngram_size + 1 :])
            scores[row, torch.tensor(followers.get(newest, []), dtype=torch.int64)] = -torch.inf
        return scores

"""Calls of logits processors, of few tokens, so that n-grams come again."""

import itertools

import torch

SIZES = (1, 2, 3, 5, 9)
SHAPES = [(1, 1), (1, 8), (3, 4), (2, 37), (5, 300)]  # rows, tokens
VOCABULARY = 7


def ids_of(rows, tokens, dtype=torch.int64, among=3):
    """Padded on the left, as prompts are."""
    ids = torch.randint(0, among, (rows, tokens), dtype=dtype)
    ids[:, : tokens // 4] = 1
    return ids


def scores_of(rows, dtype=torch.float32, vocabulary=VOCABULARY):
    """With infinities and NaN among them."""
    scores = torch.randn(rows, vocabulary)
    for i, special in enumerate((-torch.inf, torch.inf, torch.nan)):
        scores[i % rows, i % vocabulary] = special
    return scores.to(dtype)


def calls():
    """Sizes of n-grams, ids and scores."""
    for size, shape, of_ids in itertools.product(SIZES, SHAPES, (torch.int32, torch.int64)):
        yield size, ids_of(*shape, of_ids), scores_of(shape[0])
    for of_scores in (torch.float16, torch.bfloat16):
        yield 2, ids_of(4, 20), scores_of(4, of_scores)


def encoder_calls():
    """Sizes, the encoder's ids, ids and scores, of several beams."""
    for size, sequences, beams, tokens in itertools.product(SIZES, (1, 3), (1, 4), (1, 2, 6, 30)):
        rows = sequences * beams
        yield size, torch.randint(0, 3, (sequences, 40)), torch.randint(0, 3, (rows, tokens)), scores_of(rows)
    yield 5, torch.randint(0, 3, (2, 3)), torch.randint(0, 3, (4, 9)), scores_of(4)


def same_bits(found, expected):
    """NaN equals NaN."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)

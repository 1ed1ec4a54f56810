"""Inductor keeps no random bits in memory, and on a GPU less of what is made of them."""

from functools import partial

import pytest
import torch

import aotkit
from aotkit.benchmark.patterns.measure import chosen_cells, measure
from aotkit.torch_private.kernel_changes import random_words, realizing


@pytest.fixture
def peaks(device, monkeypatch):
    """(pattern, whether it is compiled as on a GPU) -> peak memory of a step in eager, and of ours."""

    def of(pattern, as_on_gpu):
        if device.type == "cpu":
            monkeypatch.setattr(random_words, "stores_keys", lambda device: False)
            monkeypatch.setattr(realizing, "is_on_gpu", lambda value: as_on_gpu)
        rivals = {
            "eager": lambda fn: fn,
            "aotkit": partial(aotkit.compile, backend="inductor", partition="nx_min_cut", check=False),
        }
        # Caches do not know how a graph was compiled.
        with torch._inductor.config.patch(force_disable_caches=True):
            cells = chosen_cells(device.type, pattern, "8x64x512", "float16", "FW+BW")
            eager, own = measure(cells, rivals, device=device.type, seconds=0.0).rows
        assert own.problem is None
        return eager.peak_bytes, own.peak_bytes

    return of


def test_a_step_with_dropout_takes_no_more_memory_than_in_eager(peaks):
    """But for a few numbers of each row, which layer normalisation has in float32."""
    eager, own = peaks("ln post bias", as_on_gpu=False)
    assert own <= 1.01 * eager


def test_on_a_gpu_it_takes_much_less(peaks):
    """What is made of random bits and x is not stored for the several kernels that read it."""
    eager, own = peaks("ln pre", as_on_gpu=True)
    assert own <= 0.7 * eager

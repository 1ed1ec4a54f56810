"""Inductor keeps no random bits in memory, and less of what is made of them."""

from functools import partial

import pytest
import torch

import aotkit
from aotkit.benchmark.patterns.measure import chosen_cells, measure
from aotkit.torch_private import inductor


@pytest.fixture
def peaks(device, monkeypatch):
    """Pattern -> peak memory of a step in eager, and of ours."""

    def of(pattern):
        if device.type == "cpu":  # as on a GPU
            monkeypatch.setattr(inductor, "stores_keys", lambda device: False)
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


@pytest.mark.sweep
def test_a_step_with_dropout_takes_no_more_memory_than_in_eager(peaks):
    """But for a few numbers of each row, which layer normalisation has in float32."""
    eager, own = peaks("ln post bias")
    assert own <= 1.01 * eager


@pytest.mark.sweep
def test_with_layer_norm_before_dropout_it_takes_much_less(peaks):
    """What is made of random bits and x is not stored for the several kernels that read it."""
    eager, own = peaks("ln pre")
    assert own <= 0.7 * eager

"""Inductor keeps no random bits in memory."""

from functools import partial

import torch

import aotkit
from aotkit.aot import cpu_numbers
from aotkit.benchmark.patterns import chosen_cells, measure


def test_a_step_with_dropout_takes_no_more_memory_than_in_eager(device, monkeypatch):
    """But for a few numbers of each row, which layer normalisation has in float32."""
    if device.type == "cpu":
        monkeypatch.setattr(cpu_numbers, "_is_on_gpu", lambda node: True)
    rivals = {
        "eager": lambda fn: fn,
        "aotkit": partial(aotkit.compile, backend="inductor", partition="nx_min_cut", check=False),
    }
    # Caches do not know how a graph was compiled.
    with torch._inductor.config.patch(force_disable_caches=True):
        cells = chosen_cells(device.type, "ln post bias", "8x64x512", "float16", "FW+BW")
        eager, own = measure(cells, rivals, device=device.type, seconds=0.0).rows
    assert own.problem is None
    assert own.peak_bytes <= 1.01 * eager.peak_bytes

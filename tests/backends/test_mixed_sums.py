"""Where Inductor may add up columns in the kernel that reduces rows; what it makes of it: `test_reductions.py`."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import aotkit
from aotkit.backends.inductor_graphs import compiling
from aotkit.backends.inductor_graphs.compiling import decompositions
from aotkit.backends.inductor_graphs.mixed_sums import are_right
from aotkit.torch_private.inductor import setting


def traced(function, x, tracing_mode="fake"):
    return make_fx(function, tracing_mode=tracing_mode, decomposition_table=decompositions())(x)


def columns_of_rows(x):
    return x.softmax(-1), x.exp().sum(0)


def variances_of_columns(x):
    return x.softmax(-1), x.var(0)


def counted_columns(x):
    return x.softmax(-1), (x > 0).sum(0)


def wide_columns(x):
    return x.softmax(-1), x.double().sum(0)


def columns_alone(x):
    return x.exp().sum(0), x.double().mean(0)


def rows_alone(x):
    return x.softmax(-1), x.double().sum(-1)


@pytest.mark.parametrize(
    ("function", "shape", "expected"),
    [
        (columns_of_rows, (64, 32), True),
        (columns_of_rows, (63, 32), False),  # rows behind the last one
        (variances_of_columns, (64, 32), True),
        (variances_of_columns, (63, 32), False),
        (counted_columns, (64, 32), False),  # in float32
        (wide_columns, (64, 32), False),
        (columns_alone, (63, 32), True),
        (rows_alone, (63, 32), True),
    ],
)
def test_sums_are_right_of_known_types_and_whole_blocks_of_rows(function, shape, expected):
    assert are_right(traced(function, torch.randn(shape))) == expected


def test_open_sizes_might_be_any():
    assert not are_right(traced(columns_of_rows, torch.randn(64, 32), tracing_mode="symbolic"))


def test_others_are_added_up_by_kernels_of_their_own(monkeypatch):
    settings, compile_graph = [], compiling.compile_graph

    def noting(gm, inputs, given, **kind):
        settings.append(given["triton.mix_order_reduction"])
        return compile_graph(gm, inputs, given, **kind)

    monkeypatch.setattr(compiling, "compile_graph", noting)
    for rows in (64, 63):
        aotkit.compile(columns_of_rows, backend="inductor", check=False)(torch.randn(rows, 32))
    assert settings == [setting("triton.mix_order_reduction"), False]

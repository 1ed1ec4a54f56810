"""`aotkit.frontier`: every partition of one function in memory and time, as a table and as a plot."""

import json
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import min_cut_rematerialization_partition
from torch import nn

import aotkit
from aotkit.benchmark.frontier import FRACTIONS, Frontier, Point
from aotkit.benchmark.models import MLP
from aotkit.inspection import saved_bytes
from aotkit.partitioners.rematerialization.devices import Device, measured
from aotkit.torch_private.aotautograd import memory_budget

DEVICE = Device(bandwidth=1e12, flops=1e14)
FAMILIES = ["min_cut budget", "nx_min_cut budget", "nx_min_cut peak"]


def arguments():
    return torch.randn(16, 32), torch.randn(16, 32)


@pytest.fixture(scope="module")
def mlp():
    return aotkit.frontier(MLP(layers=2, width=32), *arguments(), device=DEVICE)


def point(found, partition, limit=None):
    (only,) = [p for p in found.points if (p.partition, p.limit) == (partition, limit)]
    return only


@pytest.mark.sweep
def test_every_partitioner_and_every_budget_has_a_point(mlp):
    wanted = [(name, None) for name in aotkit.list_partitioners()]
    wanted += [(family, fraction) for family in FAMILIES for fraction in FRACTIONS]
    *found, last = mlp.points
    assert [(p.partition, p.limit) for p in mlp.points] == wanted[: len(mlp.points)]
    assert all(p.problem is None and p.seconds > 0 and p.peak_bytes >= p.saved_bytes for p in found)
    # A peak of nothing is impossible, as inputs and parameters are there; one such limit is enough.
    assert point(mlp, "nx_min_cut peak", 1.0) in found
    assert last.impossible
    assert last.limit > 0
    assert str(mlp).count("The smallest one that was found is") == 1


def uncompiled(backend):
    """The same graphs, run as they are."""
    return replace(aotkit.get_backend(backend), fw_compiler=lambda gm, inputs: gm)


@pytest.mark.parametrize(
    ("backend", "capture"), [("nop", "aot"), pytest.param("inductor", "dynamo", marks=pytest.mark.sweep)]
)
def test_it_cuts_the_graph_that_compile_cuts(backend, capture):
    model, x = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Dropout(0.5), nn.GELU()), torch.randn(4, 8)
    options = {"backend": uncompiled(backend), "capture": capture}
    found = aotkit.frontier(model, x, device=DEVICE, **options)
    for partition in aotkit.list_partitioners():
        compiled = aotkit.compile(model, partition=partition, check=False, **options)
        assert point(found, partition).saved_bytes == saved_bytes(compiled.graphs(x)), partition


@pytest.mark.sweep
def test_budgets_are_kept_and_cost_time(mlp):
    everything = point(mlp, "nx_min_cut budget", 1.0)
    for fraction in FRACTIONS:
        assert point(mlp, "nx_min_cut budget", fraction).saved_bytes <= fraction * everything.saved_bytes
    nothing = point(mlp, "nx_min_cut budget", 0.0)
    assert nothing.seconds > everything.seconds
    assert nothing.repeated_flops > 0 == everything.repeated_flops


def test_time_is_that_of_the_device():
    def seconds(device):
        x = torch.randn(8, 8, requires_grad=True)
        return point(aotkit.frontier(lambda x: (x @ x).sin(), x, backend="nop", device=device), "default").seconds

    slower = Device(DEVICE.bandwidth / 2, DEVICE.flops / 2, DEVICE.launch * 2)
    assert seconds(slower) == pytest.approx(2 * seconds(DEVICE))


def test_by_default_time_is_estimated_for_the_device_of_the_arguments():
    found = aotkit.frontier(lambda x: (x @ x).sin(), torch.randn(4, 4, dtype=torch.float64, requires_grad=True))
    assert found.device is measured(torch.device("cpu"), torch.float64)


def test_the_frontier_is_what_nothing_else_beats():
    def at(name, saved, peak, seconds, problem=None):
        return Point(name, None, saved, peak, peak, seconds, problem=problem)

    points = [
        at("fast", 9, 5, 1.0), at("small", 1, 9, 3.0), at("between", 5, 7, 2.0), at("same", 5, 7, 2.0),
        at("slower", 5, 7, 2.5), at("larger", 6, 6, 2.0), at("failed", 0, 0, 0.0, "no such cut"),
    ]  # fmt: skip
    found = Frontier("fn", "nop", DEVICE, points)
    assert [p.partition for p in found.best("saved")] == ["fast", "small", "between", "same"]
    assert [p.partition for p in found.best("peak")] == ["fast"]
    rows = {line.split()[0]: line for line in str(found).splitlines()[2 : 2 + len(points)]}
    assert rows["fast"].endswith("  saved, peak")
    assert rows["small"].endswith("  saved")
    assert rows["larger"].endswith("  2,000.000")
    assert rows["failed"].split() == ["failed", "failed"]


def test_a_budget_that_is_impossible_says_so():
    def drawing(x):
        return torch.rand_like(x) * (x @ x).sin()

    found = aotkit.frontier(drawing, torch.randn(8, 8, requires_grad=True), random="torch", device=DEVICE)
    (impossible,) = [p for p in found.points if p.partition == "nx_min_cut budget" and p.problem]
    assert "the smallest possible budget is 256 bytes" in impossible.problem
    assert [impossible.partition, str(impossible.limit), "impossible"] in [
        line.rsplit(maxsplit=2) for line in str(found).splitlines()
    ]
    assert impossible not in found.best("saved") + found.best("peak")
    assert f"{impossible.label}: {impossible.problem}" in " ".join(str(found).split())
    assert point(found, "nx_min_cut budget", 1.0).problem is None


def test_a_partitioner_that_draws_anew_is_no_point():
    @aotkit.register_partitioner("careless")
    def careless(joint, joint_inputs, *, num_fwd_outputs, **kwargs):
        with memory_budget(0.0):
            return min_cut_rematerialization_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)

    try:
        x = torch.randn(8, 8, requires_grad=True)
        found = aotkit.frontier(lambda x: F.dropout(x.sin(), 0.5) * x, x, random="torch", device=DEVICE)
    finally:
        aotkit.unregister_partitioner("careless")
    assert "backward draws 1 random value(s) anew" in point(found, "careless").problem


@pytest.mark.sweep
def test_table_markdown_and_json_hold_every_point(mlp):
    for text in (str(mlp), mlp._repr_markdown_()):
        assert text.startswith(("MLP: operators of backend inductor", "**MLP: operators of backend inductor"))
        assert all(column in text for column in Frontier.heading)
        assert text.count("nx_min_cut budget") == len(FRACTIONS)
    assert max(map(len, str(mlp).splitlines())) <= 118
    found = json.loads(json.dumps(mlp.json()))
    assert len(found["points"]) == len(mlp.points)
    assert found["device"] == {"bandwidth": 1e12, "flops": 1e14, "launch": DEVICE.launch}
    best = [p["saved_bytes"] for p in found["points"] if "saved" in p["best"]]
    assert 0 in best


def test_nothing_runs_and_nothing_changes():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()), torch.randn(8, 4)
    before, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    aotkit.frontier(model, x, device=DEVICE)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("context", [torch.no_grad(), torch.enable_grad()], ids=["no_grad", "no input requires any"])
def test_without_gradients_there_is_nothing_to_partition(context):
    with context, pytest.raises(aotkit.TraceError, match=r"no backward pass.*Pass a tensor that requires gradients"):
        aotkit.frontier(torch.sin, torch.randn(4), device=DEVICE)


@pytest.mark.sweep
def test_the_plot_has_a_line_for_each_family(mlp):
    pytest.importorskip("matplotlib").use("agg")
    axes = mlp.plot()
    for ax, memory in zip(axes, ("saved_bytes", "peak_bytes"), strict=True):
        lines = {line.get_label(): line.get_xydata().tolist() for line in ax.get_lines()}
        assert list(lines) == [*aotkit.list_partitioners(), *FAMILIES]
        for name, places in lines.items():
            own = [p for p in mlp.points if p.partition == name and p.problem is None]
            assert places == [[getattr(p, memory) / 2**20, p.seconds * 1e3] for p in own]
    from matplotlib import pyplot

    pyplot.close(axes[0].figure)


def test_the_plot_goes_where_the_user_wants_it(mlp):
    pytest.importorskip("matplotlib").use("agg")
    from matplotlib.figure import Figure

    axes = Figure().subplots(1, 2)
    assert mlp.plot(axes) == list(axes)
    with pytest.raises(ValueError, match="drawn on 2 axes, not 3"):
        mlp.plot(Figure().subplots(1, 3))


def test_without_matplotlib_the_error_says_how_to_get_it(mlp, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(aotkit.UnavailableError, match="pip install matplotlib"):
        mlp.plot()

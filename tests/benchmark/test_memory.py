"""`python -m aotkit bench memory`: what it measures, what it says, and how it is asked."""

import gc
import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import aotkit
from aotkit.benchmark import memory_variants
from aotkit.benchmark.memory import memory
from aotkit.benchmark.memory_plot import plot
from aotkit.benchmark.memory_report import MemoryReport, Row
from aotkit.benchmark.memory_variants import Variant
from aotkit.cli import main
from aotkit.launches.allocations import most_allocated

CPU = torch.device("cpu")
MACHINE = {"processor": "some processor", "gpu": None}


def test_the_peak_counts_what_is_alive_at_a_time():
    def step():
        a = torch.empty(3 << 20, dtype=torch.int8)
        b = torch.empty(2 << 20, dtype=torch.int8)
        del a
        return torch.empty(1 << 20, dtype=torch.int8), b

    assert most_allocated(step, CPU) == 5 << 20
    assert most_allocated(lambda: None, CPU) == 0


def test_what_was_garbage_before_is_not_freed_by_the_step():
    def leave_garbage():
        garbage = [torch.empty(5 << 20, dtype=torch.uint8)]  # torch tells of the end of those whose start it has told
        garbage.append(garbage)

    def step():
        gc.set_threshold(1, 1, 1)
        collected = [[] for _ in range(100)]
        return collected, torch.empty(1 << 20, dtype=torch.uint8)

    thresholds = gc.get_threshold()
    gc.set_threshold(10**6)
    try:
        assert most_allocated(leave_garbage, CPU) == 5 << 20
        assert most_allocated(step, CPU) == 1 << 20
    finally:
        gc.set_threshold(*thresholds)


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 64), nn.Sigmoid())

    def forward(self, x):
        return self.layers(x).square().mean()


@pytest.fixture
def tiny(monkeypatch):
    """A model that compiles within seconds."""
    model = lambda: (Tiny(), [torch.randn(512, 64)])  # noqa: E731
    monkeypatch.setitem(memory_variants.MODELS["cpu"], "tiny", model)


def test_an_interrupt_while_compiling_keeps_what_there_is(tiny):
    def interrupt(module):
        raise KeyboardInterrupt

    variants = {"eager": Variant(lambda m: m), "slow": Variant(interrupt), "never": Variant(lambda m: 1 / 0)}
    (row,) = memory(["tiny"], variants, seconds=0.1).rows
    assert (row.variant, row.problem) == ("eager", None)
    assert len(row.seconds) >= 7


def test_an_interrupt_while_timing_keeps_the_peaks(tiny):
    calls = itertools.count()

    def interrupted(module):
        def call(*args):
            if next(calls) == 5:
                raise KeyboardInterrupt
            return module(*args)

        return call

    told = []
    (row,) = memory(["tiny"], {"eager": Variant(interrupted)}, seconds=0.1, progress=told.append).rows
    assert row.peak_bytes
    assert not row.seconds
    assert told[-1] == "tiny: interrupted, the times are left out"


def test_a_budget_below_an_impossible_one_is_not_tried(tiny):
    def impossible(module):
        raise aotkit.BudgetError("No.", 1)

    variants = {"ours 0.5": Variant(impossible), "ours 0.1": Variant(lambda m: 1 / 0), "eager": Variant(lambda m: m)}
    report = memory(["tiny"], variants, seconds=0.1)
    assert [(row.variant, row.impossible) for row in report.rows] == [("ours 0.5", True), ("eager", False)]
    assert report.passed


def test_rows_have_peak_time_and_simulation(tiny, capsys, tmp_path):
    rows = "eager,torch.compile 1.0,min_cut"
    assert main(["bench", "memory", "--models", "tiny", "--partitions", rows, "--seconds", "0.1", "--json"]) == 0
    text = capsys.readouterr().out
    eager, theirs, ours = json.loads(text)["rows"]
    assert [row["variant"] for row in (eager, theirs, ours)] == rows.split(",")
    parameters = sum(p.nbytes for p in memory_variants.build("tiny", "cpu")[0].parameters())
    for row in (eager, theirs, ours):
        assert row["peak_bytes"] > 2 * parameters + 512 * 64 * 4  # with gradients and the input
        assert len(row["seconds"]) >= 7
        assert row["problem"] is None
    assert theirs["peak_bytes"] < eager["peak_bytes"]
    assert ours["peak_bytes"] < 1.02 * theirs["peak_bytes"]  # min_cut is torch.compile's partition
    assert abs(ours["simulated_bytes"] / ours["peak_bytes"] - 1) < 0.1
    assert (eager["simulated_bytes"], theirs["simulated_bytes"]) == (None, None)
    (tmp_path / "found.json").write_text(text)
    assert main(["bench", "memory", "--join", str(tmp_path / "found.json")]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("tiny   eager")


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_the_models_train(model):
    pytest.importorskip("transformers", minversion="5")
    module, inputs = memory_variants.build(model, "cpu")
    loss = module(*inputs)
    loss.backward()
    assert 10 < loss.item() < 12  # about that of tokens at random: the logarithm of some 40,000
    assert all(p.grad is not None for p in module.parameters())


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(capsys):
    assert main(["bench", "memory", "--partitions", "cut"]) == 2
    assert "nothing is called 'cut'; there are eager, torch.compile 1.0," in capsys.readouterr().err
    assert main(["bench", "memory", "--join", "nowhere.json"]) == 2
    assert "nowhere.json" in capsys.readouterr().err


def report(*rows, device="cpu"):
    return MemoryReport(MACHINE, "2.13", device, list(rows))


def row(variant, peak, milliseconds, **rest):
    return Row("gpt2", variant, peak << 20, seconds=[milliseconds / 1e3] * 3, **rest)


THEIRS = row("torch.compile 0.5", 100, 10)


@pytest.mark.parametrize(
    ("peak", "milliseconds", "dominates"),
    [(100, 10, True), (90, 9, True), (90, 10.1, False), (101, 9, False)],
)
def test_a_row_dominates_if_it_needs_neither_more_memory_nor_more_time(peak, milliseconds, dominates):
    ours = row("nx_min_cut budget 0.3", peak, milliseconds)
    found = report(THEIRS, row("eager", 1, 1), ours)
    assert found.dominating(THEIRS) == ([ours] if dominates else [])
    assert found.json()["rows"][0]["dominated_by"] == ([ours.variant] if dominates else [])
    assert f"than torch.compile 0.5: {ours.variant if dominates else 'none'}\n" in str(found)


def test_the_table_tells_errors_of_the_simulation_and_what_failed():
    failed = Row("gpt2", "nx_min_cut budget 0.1")
    failed.fail(ValueError("no such\nbudget"))
    found = report(THEIRS, row("nx_min_cut", 80, 12, simulated_bytes=88 << 20), failed)
    assert not found.passed
    text = str(found)
    (line,) = [line for line in text.splitlines() if line.startswith("gpt2   nx_min_cut  ")]
    assert line.split()[2:] == ["80.0", "88.0", "+10.0%", "12.00", "±0%"]
    assert "gpt2: nx_min_cut budget 0.1: ValueError: no such budget" in text
    assert "nx_min_cut 80.0 MiB, torch.compile 0.5 100.0 MiB (-20.0%)" in text


def test_runs_are_joined_without_repeating_rows():
    first, second = report(THEIRS).json(), report(row("torch.compile 0.5", 1, 1), row("nx_min_cut", 80, 9)).json()
    found = MemoryReport.joined([first, second])
    assert [(r.variant, r.peak_bytes) for r in found.rows] == [(THEIRS.variant, 100 << 20), ("nx_min_cut", 80 << 20)]
    assert found.dominating(found.rows[0]) == [found.rows[1]]
    with pytest.raises(ValueError, match="Only runs on one device"):
        MemoryReport.joined([first, report(THEIRS, device="cuda").json()])


@pytest.mark.parametrize(
    "damage", [lambda d: d.pop("torch"), lambda d: d["rows"][0].pop("variant"), lambda d: d.clear()]
)
def test_what_is_no_report_is_told(damage, tmp_path, capsys):
    whole, damaged = report(THEIRS).json(), report(THEIRS).json()
    damage(damaged)
    names = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    for name, data in zip(names, (whole, damaged), strict=True):
        Path(name).write_text(json.dumps(data))
    assert main(["bench", "memory", "--join", *names]) == 2
    assert "Report 2 of 2 is not what --json printed" in capsys.readouterr().err


def test_the_plot_has_a_curve_for_each_family(tmp_path):
    pytest.importorskip("matplotlib")
    ours = [row(f"nx_min_cut budget {f}", 80, 12 - f) for f in (0.5, 0.3)]
    (tmp_path / "found.json").write_text(json.dumps(report(THEIRS, *ours).json()))
    command = ["bench", "memory", "--join", str(tmp_path / "found.json"), "--plot", str(tmp_path / "plot.svg")]
    assert main(command) == 0
    drawn = (tmp_path / "plot.svg").read_text()
    assert [drawn.count(f"<!-- {text} -->") for text in ("nx_min_cut budget", "torch.compile", "0.3")] == [1, 1, 1]


def test_a_plot_needs_rows_and_matplotlib(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("aotkit.cli.benchmarks.find_spec", lambda name: None)
    assert main(["bench", "memory", "--plot", "plot.svg"]) == 3
    assert "--plot needs matplotlib: pip install matplotlib" in capsys.readouterr().err
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="nothing to draw"):
        plot(report(), tmp_path / "plot.png")

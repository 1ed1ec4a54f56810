"""`python -m aotkit bench patterns`: what it accepts as right, what it measures, what it says, and how it is asked."""

import json

import pytest
import torch
from torch.nn import functional as F

import aotkit
from aotkit.benchmark.patterns.cases import CASES, Case, Traffic, inputs_of
from aotkit.benchmark.patterns.cells import Row
from aotkit.benchmark.patterns.check import difference
from aotkit.benchmark.patterns.held_out import HELD_OUT
from aotkit.benchmark.patterns.measure import chosen_cells, measure, variants
from aotkit.benchmark.patterns.report import PatternsReport, summary
from aotkit.benchmark.plots import plot_patterns
from aotkit.benchmark.timing import Spread
from aotkit.benchmark.workloads import XFORMERS_SHAPES
from aotkit.cli import main

SHAPE = (3, 4, 256)
NOP = lambda fn: aotkit.compile(fn, backend="nop", partition="default")  # noqa: E731


def small_inputs(name, dtype=torch.float32, step=True):
    """A pattern of the grid, or a held-out one, and its inputs."""
    case = CASES.get(name) or HELD_OUT[name]
    return case, inputs_of(case, SHAPE if name in CASES else case.shapes["cpu"], dtype, "cpu", step=step)


@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize("name", [*CASES, *HELD_OUT])
def test_eager_is_right(name, step):
    case, inputs = small_inputs(name, step=step)
    assert difference(case, case.fn, inputs) is None


@pytest.mark.parametrize("name", HELD_OUT)
def test_held_out_patterns_are_right_in_their_own_types(name):
    case, inputs = small_inputs(name, HELD_OUT[name].dtype)
    assert difference(case, NOP(case.fn), inputs) is None


@pytest.mark.parametrize("name", ["act squared_relu bias", "ln pre"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_compiled_function_with_a_mask_of_its_own_is_right(name, dtype):
    case = CASES[name]
    assert difference(case, NOP(case.fn), inputs_of(case, SHAPE, dtype, "cpu", step=True)) is None


def test_rounding_to_the_least_numbers_of_a_type_is_right():
    case = Case("least", lambda x: x * 2e-7, ("x",), Traffic(2), Traffic(2), drops=False)
    assert difference(case, case.fn, inputs_of(case, SHAPE, torch.float16, "cpu", step=True)) is None


WRONG_HELD_OUT = [
    ("add rms_norm", "output 0 is off", lambda total, scaled: (total + scaled * 0.01, scaled)),
    ("add rms_norm", "output 1 is of torch.float64", lambda total, scaled: (total, scaled.double())),
    ("rotary", "the gradient of key is off", lambda query, key: (query, key.detach() * 0.1 + key * 0.9)),
]


@pytest.mark.parametrize(("name", "problem", "change"), WRONG_HELD_OUT)
def test_what_is_wrong_of_one_of_two_outputs_is_found(name, problem, change):
    case, inputs = small_inputs(name)
    assert problem in difference(case, lambda *inputs: change(*case.fn(*inputs)), inputs)


def test_samples_are_kept_or_dropped_as_a_whole():
    case, inputs = small_inputs("layer_scale depth")
    assert difference(case, NOP(case.fn), inputs) is None  # draws other samples than eager does
    of_elements = difference(case, lambda x, branch, weight: x + F.dropout(branch * weight, 0.1), inputs)
    assert "keeps" in of_elements
    of_none = difference(case, lambda x, branch, weight: x + branch * weight, inputs)
    assert "the output is off" in of_none


WRONG = {
    "keeps 7": lambda x, bias: F.dropout(x + bias, 0.25) + x,
    "the output is off": lambda x, bias: F.dropout(x + bias, 0.1) * 0.9 + x,
    "the gradient of x is off": lambda x, bias: F.dropout(x + bias, 0.1) + x.detach(),
    "the gradient of bias is off": lambda x, bias: F.dropout(x + 2 * bias - bias.detach(), 0.1) + x,
    "the output is of torch.float64": lambda x, bias: (F.dropout(x + bias, 0.1) + x).double(),
}


@pytest.mark.parametrize("problem", WRONG)
def test_what_is_wrong_is_found(problem):
    case = CASES["res bias"]
    found = difference(case, WRONG[problem], inputs_of(case, SHAPE, torch.float32, "cpu", step=True))
    assert found is not None
    assert problem in found


def test_the_least_traffic():
    n, k = 8 * 256 * 512, 512
    gelu, relu = CASES["act gelu bias"], CASES["act relu"]
    assert gelu.ideal_bytes((8, 256, 512), 2, step=False) == 2 * (2 * n + k)  # x and bias in, y out
    assert gelu.ideal_bytes((8, 256, 512), 2, step=True) == 2 * (5 * n + 3 * k)  # x, gradient in; two gradients out
    assert relu.ideal_bytes((8, 256, 512), 4, step=True) == 4 * 4 * n + n / 4  # a bit out, and in again
    add_norm, smooth = HELD_OUT["add rms_norm"], HELD_OUT["cross_entropy smooth z"]
    assert add_norm.ideal_bytes((256, 512), 2, step=False) == 2 * (4 * 256 * 512 + k)
    assert add_norm.ideal_bytes((256, 512), 2, step=True) == 2 * (9 * 256 * 512 + 3 * k)  # and the sum again
    assert smooth.ideal_bytes((8, 512), 2, step=False) == 2 * 8 * 512 + 8 * 8 + 2  # targets have eight bytes
    assert smooth.ideal_bytes((8, 512), 2, step=True) == 2 * (2 * 8 * 512 + 8 * 8 + 2) + 2 * 8 * 512


def test_the_grid_is_that_of_xformers():
    assert len(chosen_cells("cuda", "act *,res*,ln *")) == 288
    assert {cell.shape for cell in chosen_cells("cuda")} == set(XFORMERS_SHAPES)
    assert len(chosen_cells("cpu", "softmax", "2x8,4x8", "bfloat16,float32", "FW")) == 4


def test_held_out_patterns_have_their_own_shapes_and_types():
    cells = chosen_cells("cuda", held_out=True)
    assert len(cells) == 2 * len(HELD_OUT) == 28
    assert {cell.dtype for cell in cells} == {torch.bfloat16, torch.float32}
    assert str(chosen_cells("cuda", "rot*", held_out=True)[0]) == "rotary FW bfloat16 4x32x2048x128"
    (cell,) = chosen_cells("cpu", "rotary", dtypes="float16", passes="FW", held_out=True)
    assert (cell.shape, cell.dtype) == ((2, 4, 16, 32), torch.float16)


def test_rows_have_times_peaks_and_problems():
    cells = chosen_cells("cpu", "act relu", "16x256")
    rivals = {"eager": lambda fn: fn, "nop": NOP, "torch.compile": lambda fn: lambda x: fn(x) + 1}
    report = measure(cells, rivals, seconds=0.0)
    assert [row.problem is None for row in report.rows] == [True, True, False] * 2
    assert "the output is off" in report.rows[2].problem
    assert not report.passed
    for row in report.rows:
        assert (row.wall is None) == (row.variant == "torch.compile")
    eager = report.rows[0]
    assert eager.wall.median > 0
    # Input, result of relu, mask and output, in float32 and in bytes; freed one after the other.
    assert 3 * 4 * 16 * 256 <= eager.peak_bytes <= 5 * 4 * 16 * 256
    joined = PatternsReport.joined([json.loads(json.dumps(report.json()))] * 2)
    assert joined == report
    assert "act relu FW float32 16x256: torch.compile: ValueError: the output is off" in " ".join(str(joined).split())


def test_an_interrupt_keeps_the_cells_before_it():
    def interrupt(fn):
        if fn is CASES["softmax"].fn:
            raise KeyboardInterrupt
        return fn

    report = measure(chosen_cells("cpu", "act relu,softmax", "16x256", passes="FW"), {"eager": interrupt}, seconds=0.0)
    assert [row.pattern for row in report.rows] == ["act relu"]


def row(variant, microseconds, shape=(4, 8), drops=True, phase="FW", peak=100, held_out=False):
    seconds = Spread(microseconds * 1e-6, microseconds * 1e-6, microseconds * 1e-6)
    wall = Spread(3 * seconds.median, 0.0, 0.0)
    name = "act relu" if drops else "softmax"
    return Row(name, phase, "float32", list(shape), drops, variant, seconds, wall, peak, 100.0, 5e-6, 1.0, held_out)


def test_what_it_says():
    rows = [
        row("eager", 40), row("torch.compile", 30), row("torch.compile max-autotune", 20), row("nnc", 15, peak=30),
        row("inductor min_cut", 10, peak=50),
        row("eager", 90, (8, 8)), row("torch.compile", 5, (8, 8)), row("nnc", 10, (8, 8), peak=200),
        row("eager", 8, drops=False), row("torch.compile", 16, drops=False), row("nnc", 4, drops=False),
        row("torch.compile", 4, (4, 4), held_out=True), row("nnc", 5, (4, 4), held_out=True),
    ]  # fmt: skip
    report = PatternsReport({"gpu": "some GPU", "processor": ""}, "2.13", "cuda", rows)
    first = report.cells[0]
    assert (first.torch.variant, first.ours.variant) == ("torch.compile max-autotune", "inductor min_cut")
    text = " ".join(str(report).split())
    for said in (
        "FW, with dropout: torch.compile takes 1.00 times aotkit's time in the geometric mean of 2 cells; less in 1; "
        "worst: 0.50, act relu FW float32 8x8",
        "FW, all patterns: torch.compile takes 1.59 times aotkit's time in the geometric mean of 3 cells",
        "FW, held-out patterns: torch.compile takes 0.80 times aotkit's time in the geometric mean of 1 cells; less in "
        "1; worst: 0.80, act relu FW float32 4x4",
        "FW, with dropout: eager takes 6.00 times aotkit's time in the geometric mean, from 4.00 to 9.00; xFormers' "
        "plots (NVFuser, V100): 2.62",
        "FW: peak memory is 1.00 of eager's; at most 2.00: act relu FW float32 8x8",
        "at least 50%: act relu FW float32 4x8",
        "smallest shapes (4x8, 8x8): eager takes 4.16 times aotkit's wall time",
    ):
        assert said in text
    assert summary([]) == []


def test_shapes_of_as_many_elements_are_two():
    rows = [row(variant, 10, shape) for shape in ((8, 8), (4, 8), (2, 16)) for variant in ("eager", "nnc")]
    text = " ".join(str(PatternsReport({"gpu": "some GPU", "processor": ""}, "2.13", "cuda", rows)).split())
    assert "smallest shapes (4x8, 2x16)" in text
    assert "largest shapes (2x16, 8x8)" in text


def test_the_picture_has_bars_for_each_variant(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [row("eager", 40), row("torch.compile", 30), row("nnc", 15), row("eager", 90, (8, 8)), row("nnc", 9, (8, 8))]
    plot_patterns(PatternsReport({"gpu": "some GPU", "processor": ""}, "2.13", "cuda", rows), tmp_path / "bars.svg")
    picture = (tmp_path / "bars.svg").read_text()
    for text in ("relu", "FW, float32", "4x8", "8x8", "torch.compile", "nnc"):
        assert f">{text}</" in picture
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_patterns(PatternsReport({"gpu": None, "processor": ""}, "2.13", "cpu", rows[:1]), tmp_path / "none.svg")


def test_on_the_command_line(capsys, tmp_path):
    command = ["bench", "patterns", "--patterns", "softmax", "--shapes", "2x256", "--variants", "eager"]
    assert main([*command, "--passes", "FW+BW", "--seconds", "0", "--json"]) == 0
    (tmp_path / "a.json").write_text(capsys.readouterr().out)
    assert main(["bench", "patterns", "--join", str(tmp_path / "a.json")]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[:4] == ["softmax", "FW+BW", "float32", "2x256"]


def test_held_out_patterns_on_the_command_line(capsys, tmp_path):
    command = ["bench", "patterns", "--held-out", "--patterns", "add rms_norm,clip_loss", "--variants", "eager"]
    assert main([*command, "--passes", "FW+BW", "--seconds", "0", "--json"]) == 0
    (tmp_path / "a.json").write_text(capsys.readouterr().out)
    assert main(["bench", "patterns", "--join", str(tmp_path / "a.json")]) == 0
    lines = [line.split()[:5] for line in capsys.readouterr().out.splitlines()]
    assert lines[2] == ["add", "rms_norm", "FW+BW", "bfloat16", "64x256"]
    assert lines[3][:4] == ["clip_loss", "FW+BW", "bfloat16", "64x64"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--patterns", "gelu"], "nothing is called 'gelu'; there are act relu,"),
        (["--shapes", "2"], "two or more sizes, such as 8x256x512, not '2'"),
        (["--held-out", "--shapes", "8x8"], "held-out patterns have shapes of their own"),
        (["--held-out", "--patterns", "softmax"], "nothing is called 'softmax'; there are swiglu,"),
        (["--dtypes", "int8"], "nothing is called 'int8'"),
        (["--variants", "xla"], "nothing is called 'xla'; there are eager"),
        (["--join", "nowhere.json"], "nowhere.json"),
    ],
)
def test_wrong_usage(options, message, capsys):
    assert main(["bench", "patterns", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.sweep
def test_all_variants_that_run_here_are_right():
    cells = [*chosen_cells("cpu", shapes="4x33x256", dtypes="float32,float16"), *chosen_cells("cpu", held_out=True)]
    report = measure(cells, variants(), seconds=0.0)
    assert [row.problem for row in report.rows if row.problem] == []

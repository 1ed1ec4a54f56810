"""What the table calls faster, slower and noise."""

import pytest

from aotkit.benchmark import BenchReport, Row, Samples


def row(backend, *seconds):
    return Row(backend, "", {"forward": Samples(wall=list(seconds))}, status="ok")


@pytest.mark.parametrize(
    ("seconds", "verdict", "shown"),
    [
        ([0.010, 0.011, 0.012], "faster", "2.00x"),
        ([0.044, 0.045, 0.046], "slower", "0.49x"),
        ([0.015, 0.018, 0.030], "noise", "1.22x"),
        ([0.0219, 0.0219, 0.0219], "noise", "1.00x"),
    ],
)
def test_verdicts(seconds, verdict, shown):
    report = BenchReport("f", {"torch": "torch"}, [row("eager", 0.021, 0.022, 0.023), row("mine", *seconds)])
    assert report.verdict(report.rows[1], "forward") == verdict
    (line,) = [line for line in str(report).splitlines() if line.startswith("mine")]
    assert shown in line
    assert verdict in line


def test_a_difference_below_two_percent_is_noise_however_steady():
    report = BenchReport("f", {}, [row("eager", *[0.0100] * 9), row("mine", *[0.0099] * 9)])
    assert report.verdict(report.rows[1], "forward") == "noise"


def test_times_have_three_digits():
    rows = [row("a", 1.2345), row("b", 0.0123456), row("c", 0.00000123456)]
    lines = str(BenchReport("f", {}, rows)).splitlines()
    assert [line.split()[1] for line in lines[2:5]] == ["1234", "12.3", "0.00123"]

"""aotkit's own backends and partitioners conform: parts of the suites here, the whole of them by `pytest -m sweep`."""

import pytest
import torch

import aotkit
from aotkit.testing.conformance.report import matching, run
from aotkit.testing.conformance.requirements import Subject
from aotkit.testing.conformance.suites import requirements

NAMES = {"backend": aotkit.list_backends(), "partitioner": aotkit.list_partitioners()}
GROUPS = {kind: sorted({r.name.partition("/")[0] for r in requirements(kind)}) for kind in NAMES}
EVERY_TIME = {
    "nop": ["contract/*", "reuse/*", "boxed/*", "threads/*", "errors/*", "layout/*"],
    "default": ["cut/*", "random/*"],
    "nx_min_cut": ["cut/*", "random/*"],
}
ZEROS = "Inductor makes a constant of a gradient that is zero whatever comes in; of two outputs' it gives both"
OF_2_11 = {
    "op/aten.scatter_add": "Inductor writes C++ that does not compile for its backward graph",
    "dtype/converted": "Inductor leaves a conversion to bfloat16 and back out, and the check refuses that",
}
OF_INDUCTOR = {"op/aten.floor": ZEROS} | (OF_2_11 if torch.__version__.startswith("2.11.") else {})
EXPECTED = {"inductor": OF_INDUCTOR, "inductor_cpp": OF_INDUCTOR}


def conforms(kind, name, pattern):
    subject = Subject(kind, name, torch.device("cpu"))
    try:
        subject.plug_in()
    except aotkit.UnavailableError as e:
        pytest.skip(str(e))
    wanted = matching(requirements(kind), pattern)
    expected = {r.name: EXPECTED[name][r.name] for r in wanted if r.name in EXPECTED.get(name, {})}
    report = run(subject, wanted, expected)
    assert report.passed, report


@pytest.mark.thinned
@pytest.mark.parametrize(("name", "pattern"), [(name, p) for name, patterns in EVERY_TIME.items() for p in patterns])
def test_conforms_in(name, pattern):
    conforms("backend" if name in aotkit.list_backends() else "partitioner", name, pattern)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "name", "group"),
    [(kind, name, g) for kind, names in NAMES.items() for name in names for g in GROUPS[kind]],
)
def test_conforms(kind, name, group):
    conforms(kind, name, f"{group}/*")

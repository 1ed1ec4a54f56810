"""The suites as pytest tests: subclass one, and name your plug-in."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from aotkit.errors import UnavailableError
from aotkit.testing.conformance.report import reasons_for, undisturbed
from aotkit.testing.conformance.requirements import Kind, Requirement, Subject
from aotkit.testing.conformance.suites import requirements


class _Conformance:
    """One test for each requirement, which pytest calls `test_conforms[group/name]`.

    Attributes:
        name: the plug-in: a registered name, or the object itself.
        expected_failures: name or pattern (`dtype/*`) -> reason. Strict: each of them has to fail.
        device: where the inputs are.
        all_operators: add `opinfo/*`, every operator of PyTorch's own test database; needs expecttest and numpy.
    """

    kind: ClassVar[Kind]
    name: ClassVar[Any] = None
    expected_failures: ClassVar[Mapping[str, str]] = {}
    device: ClassVar[str] = "cpu"
    all_operators: ClassVar[bool] = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if cls.name is not None:
            cls.test_conforms = _test(requirements(cls.kind, cls.all_operators), cls.expected_failures)  # type: ignore[attr-defined]


class BackendConformance(_Conformance):
    """The requirements on a backend, as pytest tests::

        class TestMine(BackendConformance):
            name = "mine"
            expected_failures = {"dynamic/*": "compiles graphs of fixed sizes only"}

    Where the backend is unavailable, its tests are skipped, with its reason. An entry of `expected_failures` that
    matches no requirement raises UnknownNameError when the class is defined.
    """

    kind = "backend"


class PartitionerConformance(_Conformance):
    """The requirements on a partitioner, as pytest tests; see `BackendConformance`."""

    kind = "partitioner"


def _test(cases: Sequence[Requirement], expected_failures: Mapping[str, str]) -> Any:
    import pytest

    reasons = reasons_for(cases, expected_failures)

    def param(case: Requirement) -> Any:
        reason = f"{reasons.get(case.name)} (if it passes, remove it from expected_failures)"
        marks = [pytest.mark.xfail(reason=reason, strict=True)] if case.name in reasons else []
        return pytest.param(case, id=case.name, marks=marks)

    @pytest.mark.parametrize("case", [param(c) for c in cases])
    def test_conforms(self: _Conformance, case: Requirement) -> None:
        subject = Subject(self.kind, self.name, torch.device(self.device))
        try:
            subject.plug_in()
        except UnavailableError as e:
            if e.__cause__ is not None:  # it does not even import
                raise
            pytest.skip(str(e))
        with undisturbed():
            case.check(subject)

    return test_conforms

"""Training steps of public libraries compile, pass the check and train as eager does; `make models` has the table."""

import tomllib
from pathlib import Path

import pytest

from tests.models import zoo
from tests.models.measure import measure
from tests.models.report import is_right

ROOT = Path(__file__).resolve().parents[2]
# Of kinds that have broken: masks, containers, changed configurations, packed sequences, open sizes,
# kernels whose strides the trace gets wrong.
FAST = ["gru_packed", "convolutional", "checkpointed"]
NOT_FOUND = "TorchDynamo leaves torch's recurrent modules alone: torch.compile runs it eagerly, too"
GAPS = {
    "odeint_dopri5": "it writes into views of a graph's output: torch.compile fails in the backward pass, too",
    "gru_packed_input": NOT_FOUND,
    "lstm": NOT_FOUND,
}
STEPS = zoo.steps()
# Libraries warn of what they do; aotkit has no reason to.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::aotkit.errors.EagerCallWarning"),
    pytest.mark.filterwarnings("error::aotkit.errors.RecompilationWarning"),
]


def case(name):
    slow = [] if name in FAST else [pytest.mark.sweep]
    gap = [pytest.mark.xfail(reason=GAPS[name])] if name in GAPS else []
    return pytest.param(name, marks=slow + gap)


@pytest.mark.parametrize("name", [case(name) for name in STEPS])
def test_a_training_step_is_compiled_and_right(name):
    step = STEPS[name]
    if (missing := step.missing()) is not None:
        pytest.skip(missing)
    found = measure(step, "aotkit", {"backend": "nop"})
    assert found.outcome not in ("eager", "refused", "broken"), found.error or found.why
    assert is_right(found), found


def test_the_group_has_every_library_of_the_zoo():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    installed = {name for group in ("test", "models") for name in groups[group] if isinstance(name, str)}
    needed = {step.library for step in STEPS.values()} - {"torch", "timm"}
    assert needed <= {name.partition(">")[0] for name in installed}

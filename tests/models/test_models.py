"""Training steps of public libraries compile, pass the check and train as eager does; `make models` has the table."""

import tomllib
from pathlib import Path

import pytest

from tests.models import zoo
from tests.models.measure import measure
from tests.models.report import ALLOWED

ROOT = Path(__file__).resolve().parents[2]
# One of each kind that has broken: masks, caches, containers, changed configurations, packed sequences, step sizes.
FAST = [
    "gpt2", "llama", "bert", "t5", "vit", "clip", "whisper", "gru_packed", "convolutional", "checkpointed", "gcn",
    "odeint_dopri5",
]  # fmt: skip
STEPS = zoo.steps()
CASES = [name if name in FAST else pytest.param(name, marks=pytest.mark.sweep) for name in STEPS]


@pytest.mark.parametrize("name", CASES)
def test_a_training_step_is_compiled_and_right(name):
    step = STEPS[name]
    if (missing := step.missing()) is not None:
        pytest.skip(missing)
    found = measure(step, "aotkit", {"backend": "nop"})
    assert found.outcome not in ("eager", "refused", "broken"), found.error or found.why
    assert found.check
    assert found.difference <= ALLOWED, found.where


def test_the_group_has_every_library_of_the_zoo():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    installed = {name for group in ("test", "models") for name in groups[group] if isinstance(name, str)}
    needed = {step.library for step in STEPS.values()} - {"torch", "timm"}
    assert needed <= {name.partition(">")[0] for name in installed}

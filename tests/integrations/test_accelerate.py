"""accelerate: `prepare`, gradient accumulation and autocast."""

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils.data import DataLoader

from tests.integrations.models import assert_same_parameters, batch, decoder, twins


@pytest.fixture(autouse=True)
def fresh_state():
    """accelerate keeps the first precision that it is given for the whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def train(model, precision):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader([batch([5, 4], seed=i) for i in range(4)], batch_size=None)
    prepared, optimizer, data = accelerator.prepare(model, optimizer, data)
    losses = []
    for inputs in data:
        with accelerator.accumulate(prepared):
            loss = prepared(**inputs).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, accelerator.unwrap_model(prepared)


@pytest.mark.sweep
@pytest.mark.thinned
@pytest.mark.parametrize(("precision", "tolerance"), [("no", 1e-5), ("bf16", 0.02)])
def test_accumulated_steps(precision, tolerance):
    model, ours = twins(decoder(use_cache=False))
    wanted, _ = train(model, precision)
    found, unwrapped = train(ours, precision)
    assert found == pytest.approx(wanted, rel=tolerance)
    assert unwrapped is ours
    if precision == "no":
        assert_same_parameters(ours, model)

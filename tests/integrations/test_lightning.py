"""Lightning: a module that compiles its inner model, and a compiled LightningModule."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

lightning = pytest.importorskip("lightning")

from tests.integrations.models import assert_same_parameters, compiled  # noqa: E402


class Classifier(lightning.LightningModule):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.losses = []

    def forward(self, x):
        return self.inner(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))


def fit(module, folder):
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(12, 8), torch.randint(3, (12,)))
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module, DataLoader(data, batch_size=4))
    trainer.save_checkpoint(folder / "last.ckpt")
    return module


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:GPU available but not used")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("whole", [False, True], ids=["inner model", "LightningModule"])
def test_fit(whole, tmp_path):
    model = layers()
    eager = fit(Classifier(copy.deepcopy(model)), tmp_path)
    ours = fit(compiled(Classifier(model)) if whole else Classifier(compiled(model)), tmp_path)
    assert ours.losses == pytest.approx(eager.losses, rel=1e-5)
    assert_same_parameters(ours, eager)
    restored = Classifier.load_from_checkpoint(tmp_path / "last.ckpt", inner=layers())
    assert_same_parameters(restored, eager)

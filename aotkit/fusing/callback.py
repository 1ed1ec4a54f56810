"""`fuse` for the Trainer of transformers."""

from typing import Any

from transformers import TrainerCallback

from aotkit.fusing import FusionConfig, fuse
from aotkit.fusing.classes import is_fused
from aotkit.fusing.config import AnyConfig, config_of


class FuseCallback(TrainerCallback):
    """Fuses a Trainer's model: `Trainer(model, arguments, callbacks=[FuseCallback(config)])`.

    It does so before the Trainer wraps the model, and once more where `model_init` has made another. The model stays
    fused after training; one that is fused already stays as it is.

    Args:
        config: as for `fuse`.

    Raises:
        as `fuse`: for the config itself at once, for the model when the Trainer gets it.
    """

    def __init__(self, config: AnyConfig = None) -> None:
        self.config: FusionConfig = config_of(config)

    def on_init_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **kwargs: Any) -> None:
        self._fuse(model)

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **kwargs: Any) -> None:
        self._fuse(model)

    def _fuse(self, model: Any) -> None:
        if model is not None and not is_fused(model):
            fuse(model, self.config)

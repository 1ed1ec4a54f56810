"""Kernels of `aotkit.nn` in the places of a model's own code: RMS norms, and what bans repeated n-grams."""

from typing import Any

from torch import nn

from aotkit import nn as kernels
from aotkit.errors import UnsupportedError
from aotkit.fusing.decision import Decision


def norms(model: nn.Module, **options: Any) -> dict[str, Decision]:
    """For each norm of a model, by name, whether it becomes a `FusedRMSNorm`; those that are none have the reason.

    Args:
        options: of `compile`.
    """
    found = {}
    for name, module in model.named_modules():
        if "norm" not in type(module).__name__.lower() or next(module.children(), None) is not None:
            continue
        try:
            forward = kernels.rms_norm_forward(module, **options)
        except UnsupportedError as e:
            found[name] = Decision("left", str(e))
        else:
            found[name] = Decision("swapped", "FusedRMSNorm", forward)
    return found


def with_fused_processors(cls: Any) -> dict[str, Any]:
    """Attributes for a subclass of a model of transformers, with which `generate` bans n-grams by our kernels.

    `generate` asks its model for the list of processors. Their order in it stays, since some undo what others ban.
    """
    if not hasattr(cls, "_get_logits_processor"):
        return {}

    def _get_logits_processor(self: Any, *args: Any, **kwargs: Any) -> Any:
        processors = cls._get_logits_processor(self, *args, **kwargs)
        processors[:] = [kernels.fused_processor(processor) or processor for processor in processors]
        return processors

    return {"_get_logits_processor": _get_logits_processor}

"""Fused modules for transformers, with the signatures of xFormers', norms, a loss, and logits processors.

`patterns` has what the modules compute.
"""

from aotkit.nn.generation import fused_processor, generate_fused
from aotkit.nn.losses import LinearCrossEntropy, linear_cross_entropy
from aotkit.nn.modules import MLP, FusedBiasActivationDropout, FusedBiasDropoutRes, FusedBiasDropoutResLayerNorm
from aotkit.nn.ngrams import FusedEncoderNoRepeatNGram, FusedNoRepeatNGram
from aotkit.nn.norms import FusedRMSNorm, rms_norm_forward
from aotkit.nn.patterns import Activation, ResidualNormStyle, RMSNormStyle

__all__ = [
    "MLP",
    "Activation",
    "FusedBiasActivationDropout",
    "FusedBiasDropoutRes",
    "FusedBiasDropoutResLayerNorm",
    "FusedEncoderNoRepeatNGram",
    "FusedNoRepeatNGram",
    "FusedRMSNorm",
    "LinearCrossEntropy",
    "RMSNormStyle",
    "ResidualNormStyle",
    "fused_processor",
    "generate_fused",
    "linear_cross_entropy",
    "rms_norm_forward",
]

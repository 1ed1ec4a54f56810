"""Fused modules for transformers, with the signatures of xFormers', and a loss; `patterns` has what they compute."""

from aotkit.nn.losses import LinearCrossEntropy, linear_cross_entropy
from aotkit.nn.modules import MLP, FusedBiasActivationDropout, FusedBiasDropoutRes, FusedBiasDropoutResLayerNorm
from aotkit.nn.norms import FusedRMSNorm, rms_norm_forward
from aotkit.nn.patterns import Activation, ResidualNormStyle, RMSNormStyle

__all__ = [
    "MLP",
    "Activation",
    "FusedBiasActivationDropout",
    "FusedBiasDropoutRes",
    "FusedBiasDropoutResLayerNorm",
    "FusedRMSNorm",
    "LinearCrossEntropy",
    "RMSNormStyle",
    "ResidualNormStyle",
    "linear_cross_entropy",
    "rms_norm_forward",
]

"""Fused modules for transformers, with the signatures of xFormers', and a loss; `patterns` has what they compute."""

from aotkit.nn.losses import LinearCrossEntropy, linear_cross_entropy
from aotkit.nn.modules import MLP, FusedBiasActivationDropout, FusedBiasDropoutRes, FusedBiasDropoutResLayerNorm
from aotkit.nn.patterns import Activation, ResidualNormStyle

__all__ = [
    "MLP",
    "Activation",
    "FusedBiasActivationDropout",
    "FusedBiasDropoutRes",
    "FusedBiasDropoutResLayerNorm",
    "LinearCrossEntropy",
    "ResidualNormStyle",
    "linear_cross_entropy",
]

"""Fused modules for transformers, with the signatures of xFormers'; `patterns` has what they compute."""

from aotkit.nn.modules import MLP, FusedBiasActivationDropout, FusedBiasDropoutRes, FusedBiasDropoutResLayerNorm
from aotkit.nn.patterns import Activation, ResidualNormStyle

__all__ = [
    "MLP",
    "Activation",
    "FusedBiasActivationDropout",
    "FusedBiasDropoutRes",
    "FusedBiasDropoutResLayerNorm",
    "ResidualNormStyle",
]

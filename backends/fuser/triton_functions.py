"""What the generated kernels call besides Triton's own functions."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def remainder(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def tanh(x):
    """By exp, and near 0, where that cancels, by the polynomial of Cephes' tanhf."""
    square = x * x
    near = (
        (((-5.70498872745e-3 * square + 2.06390887954e-2) * square - 5.37397155531e-2) * square + 1.33314422036e-1)
        * square
        - 3.33332819422e-1
    ) * square * x + x
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    return tl.where(tl.abs(x) < 0.625, near, tl.where(x < 0.0, -far, far))


@triton.jit
def erf(x):
    """The rational approximation of Eigen's, to 3 units in the last place."""
    x = larger(smaller(x, 4.0), -4.0)
    square = x * x
    upper = -2.72614225801306e-10
    upper = upper * square + 2.77068142495902e-08
    upper = upper * square - 2.10102402082508e-06
    upper = upper * square - 5.69250639462346e-05
    upper = upper * square - 7.34990630326855e-04
    upper = upper * square - 2.95459980854025e-03
    upper = upper * square - 1.60960333262415e-02
    lower = -1.45660718464996e-05
    lower = lower * square - 2.13374055278905e-04
    lower = lower * square - 1.68282697438203e-03
    lower = lower * square - 7.37332916720468e-03
    lower = lower * square - 1.42647390514189e-02
    return x * upper / lower

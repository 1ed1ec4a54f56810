"""Stands for the device's library of functions, which Triton's interpreter does not have: NumPy's and SciPy's."""

import numpy as np
from scipy import special
from triton import language as tl
from triton.runtime.interpreter import TensorHandle

FUNCTIONS = {
    "rint": np.rint, "trunc": np.trunc, "fmod": np.fmod, "pow": np.power, "expm1": np.expm1, "log10": np.log10,
    "log1p": np.log1p, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": special.erf, "erfc": special.erfc, "erfinv": special.erfinv, "lgamma": special.gammaln,
}  # fmt: skip


def on_blocks(function):
    def applied(*blocks):
        handles = [x.handle for x in blocks]
        data = function(*(x.data for x in handles)).astype(handles[0].data.dtype)
        return tl.tensor(TensorHandle(data, handles[0].dtype), tl.block_type(blocks[0].dtype, list(data.shape)))

    return applied


def __getattr__(name):
    return on_blocks(FUNCTIONS[name])

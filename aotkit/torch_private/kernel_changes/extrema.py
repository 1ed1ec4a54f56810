"""Maxima and minima in a GPU's kernels, in the one instruction for it that keeps NaN.

Inductor compares, tests for NaN and selects: three instructions, where the sum of a row's softmax takes about 24 for
each element. On an H200 cross entropy takes 35.3 us instead of 39.9 ([2, 4096, 4096], float16). On GPUs before 8.0,
which have no such instruction, Triton writes out the three.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch._inductor.codegen.triton as triton_code
from torch._inductor.virtualized import V

_reduction_function: Any = triton_code.get_triton_reduction_function
_OF_TWO = """
@triton.jit
def {{name}}(a, b):
    return tl.{operation}(a, b, tl.PropagateNan.ALL).to(a.dtype)
"""
_OF_MANY = """
@triton.jit
def {{name}}(a, dim):
    return tl.reduce(a, dim, {of_two})
"""


@contextmanager
def extrema_in_one_instruction() -> Iterator[None]:
    """For the time of compiling a graph. What other threads compile meanwhile gets the same."""
    with (
        patch.object(triton_code.TritonOverrides, "maximum", staticmethod(_maximum)),
        patch.object(triton_code.TritonOverrides, "minimum", staticmethod(_minimum)),
        patch.object(triton_code, "get_triton_reduction_function", _extremum_function),
    ):
        yield


def _maximum(a: Any, b: Any) -> str:
    return f"tl.maximum({a}, {b}, tl.PropagateNan.ALL)"


def _minimum(a: Any, b: Any) -> str:
    return f"tl.minimum({a}, {b}, tl.PropagateNan.ALL)"


def _extremum_function(reduction_type: str) -> str:
    """What reduces, by name; written into the kernel if it is ours."""
    operation = {"max": "maximum", "min": "minimum"}.get(reduction_type)
    if operation is None:
        return str(_reduction_function(reduction_type))
    helpers = V.kernel.helper_functions
    of_two = helpers.add(_OF_TWO.format(operation=operation), base_name=f"_{operation}")
    return str(helpers.add(_OF_MANY.format(of_two=of_two), base_name=f"_{operation}_of"))

"""Operations and reductions as text of Triton's."""

import math
from typing import Any

import torch

from aotkit.backends.fuser.infix import INFIX
from aotkit.backends.fuser.loops import Node
from aotkit.backends.fuser.templates import count

TYPES = {
    torch.float64: "tl.float64", torch.float32: "tl.float32", torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16", torch.int64: "tl.int64", torch.int32: "tl.int32", torch.bool: "tl.int1",
}  # fmt: skip
OPERATIONS = INFIX | {
    "abs": "tl.abs({0})", "relu": "tl.where({0} < 0, 0, {0})", "reciprocal": "1.0 / {0}",
    "sqrt": "libdevice.sqrt({0})", "rsqrt": "tl.rsqrt({0})", "sigmoid": "1.0 / (1.0 + tl.exp(-{0}))",
    "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})", "log2": "tl.log2({0})", "sin": "tl.sin({0})",
    "cos": "tl.cos({0})", "erf": "libdevice.erf({0})", "floor": "tl.floor({0})", "ceil": "tl.ceil({0})",
    "sign": "({0} > 0).to({t}) - ({0} < 0).to({t})", "div": "{0} // {1}", "maximum": "larger({0}, {1})",
    "minimum": "smaller({0}, {1})", "isnan": "{0} != {0}", "isinf": "tl.abs({0}) == float('inf')",
    "where": "tl.where({0}, {1}, {2})",
}  # fmt: skip
LIBRARY = (
    "expm1", "log10", "log1p", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc",
    "erfinv", "lgamma", "trunc",
)  # fmt: skip
OPERATIONS |= {name: f"libdevice.{name}({{0}})" for name in LIBRARY}
OPERATIONS |= {name: f"libdevice.{name}({{0}}, {{1}})" for name in ("atan2", "pow", "fmod")}
OPERATIONS |= {"remainder": "remainder({0}, {1})", "round": "libdevice.rint({0})", "tanh": "libdevice.tanh({0})"}
# Types in which an integer of 64 bits, below this, gives the same as a number of Python's.
EXACT = {torch.float64: 2**53, torch.float32: 2**53, torch.int64: 2**63, torch.int32: 2**31}
IN_FLOAT = {"sqrt": "tl.sqrt_rn({0})", "tanh": "tanh({0})", "erf": "erf({0})"}  # of float32
# Name of a reduction: where nothing is, two values together, a row of a tile.
REDUCTIONS = {
    "sum": ("0", "{0} + {1}", "tl.sum({0}, {1})"),
    "prod": ("1", "{0} * {1}", "tl.reduce({0}, {1}, product)"),
    "max": ("lowest", "larger({0}, {1})", "tl.reduce({0}, {1}, larger)"),
    "min": ("highest", "smaller({0}, {1})", "tl.reduce({0}, {1}, smaller)"),
}


def constant(value: Any, dtype: torch.dtype) -> str:
    """A number of a type as a tile of one element. If it is an integer, it may follow from sizes."""
    text = f"float('{value}')" if isinstance(value, float) and not math.isfinite(value) else repr(value)
    if dtype in EXACT and value and value == value // 1 and abs(value) < EXACT[dtype]:
        text = count(value)
    return f"tl.full([1, 1], {text}, {TYPES[dtype]})"


def reciprocal(node: Node) -> float | None:
    """What to multiply with in order to divide by a power of two: the same, at less cost."""
    if node.kind != "constant" or not math.isfinite(node.data) or abs(math.frexp(node.data)[0]) != 0.5:
        return None
    return float(1 / node.data) if 2.0**-64 <= abs(node.data) <= 2.0**64 else None


def neutral(name: str, dtype: torch.dtype) -> str:
    """What changes no result of a reduction."""
    if (text := REDUCTIONS[name][0]) not in ("lowest", "highest"):
        return text
    if dtype.is_floating_point:
        return "float('-inf')" if text == "lowest" else "float('inf')"
    info = torch.iinfo(dtype) if dtype is not torch.bool else torch.iinfo(torch.uint8)
    return str(info.min if text == "lowest" else info.max)

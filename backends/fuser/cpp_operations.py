"""Operations and reductions as text of C++: of what `cpp_lanes.h` and `cpp_functions.h` have."""

import math
from typing import Any

import torch

from aotkit.backends.fuser.infix import INFIX

LANES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f32", torch.bfloat16: "f32", torch.int64: "i64",
    torch.int32: "i32", torch.bool: "i32",
}  # fmt: skip
MEMORY = {
    torch.float64: "double", torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat",
    torch.int64: "int64_t", torch.int32: "int32_t", torch.bool: "boolean",
}  # fmt: skip
ELEMENTS = {"f64": "double", "f32": "float", "i64": "int64_t", "i32": "int32_t"}
# {t} are lanes of the type, {e} is an element.
OPERATIONS = INFIX | {
    "abs": "absolute({0})", "relu": "select({0} < {t}{{}}, {t}{{}}, {0})", "reciprocal": "all(({e})1) / {0}",
    "sqrt": "square_root({0})", "rsqrt": "all(({e})1) / square_root({0})", "sigmoid": "sigmoid({0})",
    "floor": "below({0})", "ceil": "above({0})", "trunc": "towards_zero({0})", "round": "nearest({0})",
    "sign": "sign_of({0})", "div": "divided({0}, {1})", "remainder": "remainder_of({0}, {1})",
    "maximum": "larger({0}, {1})", "minimum": "smaller({0}, {1})", "isnan": "is_nan({0})", "isinf": "is_infinite({0})",
    "where": "select({0}, {1}, {2})",
}  # fmt: skip
FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma",
)  # fmt: skip
OPERATIONS |= {name: f"v_{name}({{0}})" for name in FUNCTIONS}
OPERATIONS |= {name: f"v_{name}({{0}}, {{1}})" for name in ("atan2", "pow", "fmod")}
# How many additions one takes, about; others take one.
COST = dict.fromkeys((*FUNCTIONS, "sigmoid", "atan2", "pow", "fmod", "remainder", "div"), 20)
COST |= dict.fromkeys(("truediv", "reciprocal", "sqrt", "rsqrt", "cast"), 5)
# Name of a reduction: where nothing is, two values together.
REDUCTIONS = {
    "sum": ("0", "{0} + {1}"),
    "prod": ("1", "{0} * {1}"),
    "max": ("lowest", "larger({0}, {1})"),
    "min": ("highest", "smaller({0}, {1})"),
}


def number(value: Any, dtype: torch.dtype) -> str:
    """A number of a type in all lanes."""
    if dtype is torch.bool:
        return f"all({str(bool(value)).lower()})"
    element = ELEMENTS[LANES[dtype]]
    if not dtype.is_floating_point:
        bits = torch.iinfo(dtype).bits
        return f"all(({element}){int(value) % 2**bits}u{'ll' * (bits > 32)})"
    if math.isfinite(value):
        return f"all(({element}){float(value)!r})"
    return f"all(({element}){'NAN' if math.isnan(value) else 'INFINITY' if value > 0 else '-INFINITY'})"


def neutral(name: str, dtype: torch.dtype) -> str:
    """What changes no result of a reduction, in all lanes."""
    text = REDUCTIONS[name][0]
    if text not in ("lowest", "highest"):
        return number(int(text), dtype)
    if dtype.is_floating_point:
        return number(-math.inf if text == "lowest" else math.inf, dtype)
    info = torch.iinfo(dtype)
    return number(info.min if text == "lowest" else info.max, dtype)


def converted(value: str, source: torch.dtype, to: torch.dtype) -> str:
    """A value of one type as one of another."""
    if to is torch.bool:
        return f"{value} != {LANES[source]}{{}}"
    text = f"of_truth<{LANES[to]}>({value})" if source is torch.bool else f"to<{LANES[to]}>({value})"
    return f"rounded_to({MEMORY[to]}{{}}, {text})" if to in (torch.float16, torch.bfloat16) else text

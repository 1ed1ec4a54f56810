"""Symbolic numbers: what they are where others are known. Nothing here adds a guard."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

Number = int | float
Evaluation = Callable[[Any], Number]  # of a number, symbolic or not


class UnknownSizeError(ValueError):
    """A size does not follow from those that are known."""


def is_open(number: Any) -> bool:
    """Whether it is symbolic."""
    return isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool)


def follows_from_sizes(number: Any) -> bool:
    """Whether a symbolic number is one of sizes that were known while tracing; neither from data nor from floats."""
    if isinstance(number, torch.SymBool) or not number.node.has_hint():
        return False
    return all(symbol.is_integer for symbol in number.node.expr.free_symbols)


def hint(number: Any) -> Any:
    """What it was while tracing."""
    return number.node.hint if is_open(number) else number


class Sizes:
    """Symbolic numbers by those that a call tells.

    Args:
        told: numbers of which each call tells the values, symbolic or not.
    """

    def __init__(self, told: Sequence[Any]) -> None:
        self._told = [x.node.expr if is_open(x) else x for x in told]

    def __call__(self, values: Sequence[Number]) -> Evaluation:
        """What numbers are, where those that are told have these values."""
        # An expression is known as a whole, too: also where its symbols are not.
        from sympy import sympify  # type: ignore[import-untyped]  # with torch's expressions, which are SymPy's

        known: dict[Any, Any] = dict(zip(self._told, map(sympify, values), strict=True))
        symbols = _solved(known)

        def evaluated(number: Any) -> Number:
            if not is_open(number):
                return number  # type: ignore[no-any-return]
            if (expression := number.node.expr) not in known:
                known[expression] = _value(expression, symbols)
            kind = int if isinstance(number, torch.SymInt) else float
            return kind(known[expression])

        return evaluated


def _solved(known: dict[Any, Any]) -> dict[Any, Any]:
    """Values of symbols; of a product of several, one by the others, of which it may be free where it is used."""
    symbols = {e: value for e, value in known.items() if getattr(e, "is_Symbol", False)}
    for expression, value in known.items():
        if isinstance(expression, int | float):
            continue
        rest = expression.xreplace(symbols)
        for symbol in sorted(rest.free_symbols, key=str):
            factor = rest.diff(symbol) if rest.is_polynomial(symbol) else None
            if factor is not None and factor.is_nonzero and not factor.has(symbol):
                solution = (value - rest.xreplace({symbol: 0})) / factor
                symbols = {s: getattr(x, "xreplace", lambda _, x=x: x)({symbol: solution}) for s, x in symbols.items()}
                symbols[symbol] = solution
                break
    return symbols


def _value(expression: Any, symbols: dict[Any, Any]) -> Any:
    try:
        value = expression.xreplace(symbols)
        if value.free_symbols:
            value = value.expand()
    except (ArithmeticError, AssertionError, TypeError, ValueError) as e:  # a division of what is no integer
        raise UnknownSizeError(f"{expression}: {e}") from e
    if value.free_symbols:
        raise UnknownSizeError(f"{expression} does not follow from the sizes of its inputs")
    return value

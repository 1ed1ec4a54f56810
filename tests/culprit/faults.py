"""Compilers that get one node of a graph wrong."""

import operator

import torch
from torch import Tensor
from torch.fx import Interpreter

import aotkit

aten = torch.ops.aten
OTHER_OPERATOR = {
    aten.add.Tensor: aten.sub.Tensor,
    aten.cos.default: aten.sin.default,
    aten.div.Tensor: aten.mul.Tensor,
    aten.exp.default: aten.sin.default,
    aten.gt.Scalar: aten.le.Scalar,
    aten.le.Scalar: aten.gt.Scalar,
    aten.mul.Scalar: aten.add.Scalar,
    aten.mul.Tensor: aten.add.Tensor,
    aten.neg.default: aten.abs.default,
    aten.relu.default: aten.abs.default,
    aten.sigmoid.default: aten.sin.default,
    aten.sin.default: aten.cos.default,
    aten.sub.Tensor: aten.add.Tensor,
    aten.tanh.default: aten.sinh.default,
}


def other_operator(target, args, kwargs):
    """Another operator of the same signature."""
    return OTHER_OPERATOR[target](*args, **kwargs)


def other_order(target, args, kwargs):
    """The first two operands swapped."""
    a, b, *rest = args
    return target(b, a, *rest, **kwargs)


def other_constant(target, args, kwargs):
    """The last number among the arguments, or the last of the last list of numbers, is another."""
    args = list(args)
    i = max(i for i, a in enumerate(args) if isinstance(a, float))
    args[i] = 1.5 * args[i] + 0.25
    return target(*args, **kwargs)


def other_dimension(target, args, kwargs):
    """Reduces or normalizes along another dimension."""
    x, dim, *rest = args
    moved = [(d + 1) % x.dim() for d in dim] if isinstance(dim, list) else (dim + 1) % x.dim()
    return target(x, moved, *rest, **kwargs)


def scaled(target, args, kwargs):
    """Everything is a quarter too large."""
    return _on_first(target(*args, **kwargs), lambda y: y * 1.25)


def shifted(target, args, kwargs):
    """Everything is off by the same."""
    return _on_first(target(*args, **kwargs), lambda y: y + 0.5)


def rolled(target, args, kwargs):
    """Everything is at a wrong place."""
    return _on_first(target(*args, **kwargs), lambda y: y.roll(1))


FAULTS = (other_operator, other_order, other_constant, other_dimension, scaled, shifted, rolled)


def _on_first(result, change):
    if isinstance(result, Tensor):
        return change(result).to(result.dtype) if result.is_floating_point() else result
    first, *rest = result
    return (_on_first(first, change), *rest)


class Faulty(Interpreter):
    """Runs a graph, but for the nodes that `is_wrong` picks by a fault; where that does not apply, correctly."""

    def __init__(self, gm, is_wrong, fault):
        super().__init__(gm)
        self._is_wrong, self._fault = is_wrong, fault

    def run_node(self, n):
        right = super().run_node(n)
        if n.op != "call_function" or not self._is_wrong(n):
            return right
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        with torch.random.fork_rng([]):
            try:
                wrong = self._fault(n.target, args, kwargs)
            except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
                return right
        return wrong if _alike(wrong, right) else right


def _alike(a, b):
    if isinstance(b, Tensor):
        return isinstance(a, Tensor) and (a.shape, a.dtype) == (b.shape, b.dtype)
    return isinstance(a, (list, tuple)) and len(a) == len(b) and all(map(_alike, a, b))


def compiler(is_wrong, fault):
    """A graph compiler with a fault."""
    return lambda gm, example_inputs: lambda *args: Faulty(gm, is_wrong, fault).run(*args)


def correct(gm, example_inputs):
    """A graph compiler without."""
    return lambda *args: Interpreter(gm).run(*args)


def backend(part, is_wrong, fault):
    """A backend with a fault in the compiler of the "forward graph" or "backward graph"."""
    wrong = compiler(is_wrong, fault)
    return aotkit.Backend(*((wrong, correct) if part == "forward graph" else (correct, wrong)))


def planted(fn, args, part, name, fault):
    """The culprit that is found where the node of this name is wrong; None if no check fails, or an operator does."""
    wrong = backend(part, lambda n: n.name == name, fault)
    try:
        aotkit.check(fn, *args, backend=wrong, partition="min_cut")
    except aotkit.MismatchError as e:
        return e.report.culprit
    except aotkit.CompileError:  # an index out of range
        return None
    return None


def operations(gm):
    """The nodes of a graph that compute something."""
    return [n for n in gm.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]

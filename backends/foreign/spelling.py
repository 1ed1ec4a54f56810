"""One spelling for what ATen can say in several ways, so that importers have little to know, and little to get wrong.

Operands have the type that is computed in, sums of half precision are in float32 as in ATen, shapes are numbers, and
nothing is said of layouts and devices.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node, map_arg

from aotkit.backends.foreign import operators as ops

aten = torch.ops.aten


def respell(gm: GraphModule) -> None:
    """Change a graph of operators of `OPERATORS` to that spelling. Its results stay the same."""
    modes = (getattr(n.meta["val"], "fake_mode", None) for n in gm.graph.find_nodes(op="placeholder"))
    mode = next(filter(None, modes), nullcontext())
    for node in list(gm.graph.nodes):
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is None:
            continue
        with gm.graph.inserting_before(node), mode:
            made = rule(gm.graph, node)
        if made is not node:
            node.replace_all_uses_with(made)
            gm.graph.erase_node(node)
    gm.graph.eliminate_dead_code()


def call(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new node with its fake tensor."""
    node = graph.call_function(target, args, kwargs)
    values, keywords = map_arg((args, kwargs), lambda n: n.meta["val"])
    node.meta["val"] = target(*values, **keywords)
    return node


def _cast(graph: Graph, value: Any, dtype: torch.dtype) -> Any:
    """A tensor in this type; numbers are left to the operator."""
    if not isinstance(value, Node) or value.meta["val"].dtype is dtype:
        return value
    return call(graph, ops.CAST, value, dtype=dtype)


def _in_type(graph: Graph, node: Any, dtype: torch.dtype) -> Node:
    """The operation on operands of this type."""
    args = [_cast(graph, a, dtype) for a in node.args]
    kwargs = {name: _cast(graph, value, dtype) for name, value in node.kwargs.items()}
    return call(graph, node.target, *args, **kwargs)


def _of_result(graph: Graph, node: Any) -> Node:
    return _in_type(graph, node, node.meta["val"].dtype)


def _added(graph: Graph, node: Any) -> Node:
    """A sum or a difference, without its factor."""
    x, y, *given = node.args
    factor = given[0] if given else node.kwargs.get("alpha", 1)
    dtype = node.meta["val"].dtype
    y = _cast(graph, y, dtype)
    if factor != 1:
        y = call(graph, aten.mul.Scalar, y, factor) if isinstance(y, Node) else y * factor
    return call(graph, node.target, _cast(graph, x, dtype), y)


def _power(graph: Graph, node: Any) -> Node:
    """As ATen computes it: compilers have other ideas of powers of zeros and infinities."""
    x, exponent = node.args
    if exponent in (2, 3, -2):
        power = call(graph, aten.mul.Tensor, x, x)
        power = call(graph, aten.mul.Tensor, power, x) if exponent == 3 else power
        return call(graph, aten.reciprocal.default, power) if exponent == -2 else power
    function = {0.5: aten.sqrt, -0.5: aten.rsqrt, -1: aten.reciprocal}[exponent]
    return call(graph, function.default, x)


def _larger(graph: Graph, node: Any) -> Node:
    """The larger or the smaller of two tensors. NaN stays: most compilers have instructions that lose it."""
    dtype = node.meta["val"].dtype
    x, y = (_cast(graph, a, dtype) for a in node.args)
    is_first = call(graph, aten.gt.Tensor if node.target is aten.maximum.default else aten.lt.Tensor, x, y)
    if dtype.is_floating_point:
        is_first = call(graph, aten.logical_or.default, is_first, _related(graph, aten.ne.Tensor, x, x))
    return call(graph, aten.where.self, is_first, x, y)


def _relu(graph: Graph, node: Any) -> Node:
    x = node.args[0]
    return call(graph, aten.where.self, call(graph, aten.le.Scalar, x, 0), _number(graph, x, 0), x)


def _sign(graph: Graph, node: Any) -> Node:
    """Of NaN, it is 0."""
    x = node.args[0]
    negative = call(graph, aten.where.self, call(graph, aten.lt.Scalar, x, 0), *(_number(graph, x, n) for n in (-1, 0)))
    return call(graph, aten.where.self, call(graph, aten.gt.Scalar, x, 0), _number(graph, x, 1), negative)


def _negative(graph: Graph, node: Any) -> Any:
    """IREE negates integers as if they were float64."""
    if node.meta["val"].dtype.is_floating_point:
        return node
    return call(graph, aten.mul.Scalar, node.args[0], -1)


def _bits(graph: Graph, node: Any) -> Node:
    """Of two tensors: IREE has no others."""
    dtype = node.meta["val"].dtype
    x, y = node.args
    y = _cast(graph, y, dtype) if isinstance(y, Node) else _number(graph, x, y, dtype)
    operator = node.target.overloadpacket.Tensor
    return call(graph, operator, _cast(graph, x, dtype), y)


def _number(graph: Graph, like: Any, number: Any, dtype: torch.dtype | None = None) -> Node:
    """A number as a tensor of no dimensions."""
    value = like.meta["val"]
    return call(graph, aten.full.default, [], number, dtype=dtype or value.dtype, device=value.device)


def _clamped(graph: Graph, node: Any) -> Any:
    """Between limits; NaN stays."""
    x, low, high = [*node.args, None, None][:3]
    low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
    x = _cast(graph, x, node.meta["val"].dtype)
    for limit, compare in ((low, aten.lt.Scalar), (high, aten.gt.Scalar)):
        if limit is not None:
            x = call(graph, aten.where.self, call(graph, compare, x, limit), _number(graph, x, limit), x)
    return x


def _compared(graph: Graph, node: Any) -> Node:
    dtype = torch.result_type(*(a.meta["val"] if isinstance(a, Node) else a for a in node.args))
    return _related(graph, node.target, *(_cast(graph, a, dtype) for a in node.args))


def _related(graph: Graph, target: Any, x: Any, y: Any) -> Node:
    """Two values compared. TVM has NaN equal to all where it asks for what is not equal."""
    equal = {aten.ne.Tensor: aten.eq.Tensor, aten.ne.Scalar: aten.eq.Scalar}.get(target)
    if equal is None:
        return call(graph, target, x, y)
    return call(graph, aten.logical_not.default, call(graph, equal, x, y))


def _logical(graph: Graph, node: Any) -> Node:
    """Of truth values alone."""
    args = [_truth(graph, a) for a in node.args]
    return call(graph, node.target, *args)


def _truth(graph: Graph, value: Any) -> Any:
    is_truth = not isinstance(value, Node) or value.meta["val"].dtype is torch.bool
    return value if is_truth else _related(graph, aten.ne.Scalar, value, 0)


def _summed(graph: Graph, node: Any) -> Any:
    """Over dimensions that are given, in float32 at least."""
    x, dims, keepdim = (*node.args, *(None, False)[len(node.args) - 1 :])[:3]
    keepdim = node.kwargs.get("keepdim", keepdim)
    result = node.meta["val"].dtype
    x = _cast(graph, x, torch.float32 if result in ops.HALVES else result)
    return _cast(graph, call(graph, node.target, x, _dims(x, dims), keepdim), result)


def _extreme(graph: Graph, node: Any) -> Node:
    x, dims, keepdim = (*node.args, *((), False)[len(node.args) - 1 :])[:3]
    return call(graph, node.target, x, _dims(x, dims), keepdim)


def _any(graph: Graph, node: Any) -> Node:
    return call(graph, node.target, _truth(graph, node.args[0]), *node.args[1:])


def _dims(x: Any, dims: Any) -> list[int]:
    rank = x.meta["val"].dim()
    return sorted(d % rank for d in dims) if dims and rank else list(range(rank))


def _chosen(graph: Graph, node: Any) -> Node:
    """Of two, where a condition holds or does not."""
    dtype = node.meta["val"].dtype
    return call(graph, node.target, node.args[0], *(_cast(graph, a, dtype) for a in node.args[1:]))


def _joined(graph: Graph, node: Any) -> Node:
    parts = [_cast(graph, part, node.meta["val"].dtype) for part in node.args[0]]
    rank = node.meta["val"].dim()
    return call(graph, node.target, parts, (node.args[1] if len(node.args) > 1 else 0) % rank)


def _indexed(graph: Graph, node: Any) -> Node:
    """With dimensions and places that count from the start."""
    x, dim, *given = node.args
    shape = x.meta["val"].shape
    if node.target is aten.permute.default:
        return call(graph, node.target, x, [d % len(shape) for d in dim])
    dim = dim % max(len(shape), 1)
    if node.target is aten.select.int:
        given = [given[0] % shape[dim]]
    elif node.target is aten.slice.Tensor:
        place = slice(*[*given, None, None, None][:3])
        given = [*place.indices(shape[dim])]
    return call(graph, node.target, x, dim, *given)


def _reshaped(graph: Graph, node: Any) -> Node:
    return _with_value(graph.call_function(aten.view.default, (node.args[0], [*node.meta["val"].shape])), node)


def _expanded(graph: Graph, node: Any) -> Node:
    return _with_value(graph.call_function(aten.expand.default, (node.args[0], [*node.meta["val"].shape])), node)


def _with_value(made: Node, node: Any) -> Node:
    made.meta["val"] = node.meta["val"].contiguous()
    return made


def _copied(graph: Graph, node: Any) -> Any:
    """What is copied, but for a result, which the function has to make anew."""
    is_result = any(user.op == "output" for user in node.users)
    return call(graph, aten.clone.default, node.args[0]) if is_result else node.args[0]


def _converted(graph: Graph, node: Any) -> Any:
    dtype = node.meta["val"].dtype
    if node.args[0].meta["val"].dtype is dtype:
        return _copied(graph, node)
    return call(graph, ops.CAST, node.args[0], dtype=dtype)


def _filled(graph: Graph, node: Any) -> Node:
    value: Tensor = node.meta["val"]
    number = node.args[0] if node.target is aten.scalar_tensor.default else node.args[1]
    return call(graph, aten.full.default, [*value.shape], number, dtype=value.dtype, device=value.device)


def _counted(graph: Graph, node: Any) -> Node:
    value: Tensor = node.meta["val"]
    return call(graph, node.target, *node.args, dtype=value.dtype, device=value.device)


_Rule = Callable[[Graph, Node], Any]
_RULES: dict[Any, _Rule] = {
    **dict.fromkeys(ops.ARITHMETIC | ops.FUNCTIONS | ops.BITS, _of_result),
    **dict.fromkeys([aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar], _added),
    **dict.fromkeys([aten.permute.default, aten.slice.Tensor, aten.select.int, aten.gather.default], _indexed),
    **dict.fromkeys(ops.EXTREMES, _larger),
    aten.clamp.default: _clamped,
    aten.pow.Tensor_Scalar: _power,
    aten.relu.default: _relu,
    aten.sign.default: _sign,
    aten.neg.default: _negative,
    **dict.fromkeys(
        (op for op in ops.BITS if op not in (aten.bitwise_not.default, aten.__rshift__.Scalar, aten.__lshift__.Scalar)),
        _bits,
    ),
    **dict.fromkeys(ops.COMPARISONS, _compared),
    **dict.fromkeys(ops.LOGIC, _logical),
    **dict.fromkeys(ops.SUMS, _summed),
    **dict.fromkeys([aten.amax.default, aten.amin.default], _extreme),
    **dict.fromkeys(ops.RESHAPES, _reshaped),
    **dict.fromkeys(ops.COPIES, _copied),
    **dict.fromkeys([aten.full.default, aten.full_like.default, aten.scalar_tensor.default], _filled),
    aten.any.dim: _any,
    aten.where.self: _chosen,
    aten.cat.default: _joined,
    aten.expand.default: _expanded,
    aten.arange.start_step: _counted,
    ops.CAST: _converted,
}

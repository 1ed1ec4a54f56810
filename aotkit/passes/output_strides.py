"""The strides of a graph's results are those of eager: decompositions, and passes that pad products, change them."""

import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node, map_arg

from aotkit.passes.new_storages import IS_NEW_STORAGE
from aotkit.torch_private.aotautograd_metadata import strides_by_result
from aotkit.torch_private.dispatch import OpOverload, tree_leaves
from aotkit.torch_private.fx import renew_code

aten = torch.ops.aten
_OTHER_DIMENSIONS = {aten.permute.default, aten.transpose.int, aten.view.default, aten._unsafe_view.default}
PROMISED = "aotkit_strides"  # in the metadata of a graph's output: what `keep_strides` was given


def strides_of(values: Sequence[Any]) -> list[Sequence[Any] | None]:
    """The strides of values; None for what is no strided tensor."""
    tensors = (v if isinstance(v, Tensor) and v.layout is torch.strided else None for v in values)
    return [None if t is None else t.stride() for t in tensors]


def promise_strides(gm: GraphModule, num_outputs: int, of_outputs: Sequence[Sequence[Any] | None]) -> None:
    """See to it that what a user sees of a forward graph has eager's strides.

    Args:
        num_outputs: how many results a user sees; the others are saved.
        of_outputs: of the function's outputs, as far as they are known.
    """
    images = _images(gm.graph)

    def is_shown(i: int, node: Node) -> bool:
        has_own = _has_open_strides(node) or _has_own_layout(node, images)
        return i < num_outputs or IS_NEW_STORAGE in node.meta or has_own

    show_results(gm, is_shown)
    gm.graph.output_node().meta[PROMISED] = strides_by_result(of_outputs)
    keep_strides(gm)


def show_results(gm: GraphModule, is_shown: Callable[[int, Node], bool] = lambda i, node: True) -> None:
    """Have Inductor keep the strides of these results alone: it pads others for faster products, or moves channels."""
    output = gm.graph.output_node()
    results: Any = output.args[0]
    output.meta["user_visible_output_idxs"] = [
        i for i, node in enumerate(results) if isinstance(node, Node) and is_shown(i, node)
    ]


def _has_open_strides(node: Node) -> bool:
    """Whether the strides of a value are made of open sizes.

    Where Inductor gives what is saved other strides, AOTAutograd tells the backward graph numbers, those of the first
    call: backward of T5 on a GPU failed for a third size (torch 2.11).
    """
    (strides,) = strides_of([node.meta.get("val")])
    return strides is not None and not all(type(n) is int for n in strides)


def _has_own_layout(node: Node, images: Collection[Node]) -> bool:
    """Whether a value has four dimensions, but is not a convolution's, or is attention's.

    Inductor takes any such result for a convolution's, if there is one behind it, and has its channels move first: it
    would transpose what linear layers read in memory, and back. In ConvNeXt-T, in bfloat16 on an H200 under torch
    2.11, that was a fifth of a step. And what cuDNN's attention gave, its backward pass has to get in the same strides:
    torch keeps a kernel for the strides of queries, keys and values, whatever those of the output are. In others, the
    gradients of the queries' weights were wrong by up to 21 % in PVT v2 (float16, H100, torch 2.11).
    """
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.dim() != 4:
        return False
    return _is_attention(node) or (node not in images and _order(value.shape, value.stride()) is not None)


def _is_attention(node: Node) -> bool:
    """Whether a value is one of the results of fused attention."""
    return node.target is operator.getitem and "scaled_dot_product" in str(node.args[0].target)  # type: ignore[union-attr]


def _images(graph: Graph) -> set[Node]:
    """What convolutions read and make, and all that is computed of it, or it of, with the same dimensions."""
    found: set[Node] = set()
    new = list(graph.find_nodes(op="call_function", target=aten.convolution.default))
    while new:
        node = new.pop()
        values = tree_leaves(node.meta.get("val"))
        if node not in found and any(isinstance(v, Tensor) and v.dim() == 4 for v in values):
            found.add(node)
            before = () if node.target in _OTHER_DIMENSIONS else node.all_input_nodes
            new += [*before, *(user for user in node.users if user.target not in _OTHER_DIMENSIONS)]
    return found


def keep_strides(gm: GraphModule) -> None:
    """Copy results that have come to have other strides than promised, as passes that pad products leave them."""
    output = gm.graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    for i, strides in output.meta.get(PROMISED, {}).items():
        node = results[i]
        value = _refreshed(node) if isinstance(node, Node) else None
        if not isinstance(value, Tensor) or _are_equal(value.shape, value.stride(), strides):
            continue
        if (copied := _with_strides(gm.graph, node, strides)) is not None:
            # What is saved is the copy, too: else both would stay in memory.
            results = [copied if r is node else r for r in results]
            output.args = (tuple(results),)
            renew_code(gm)


def _with_strides(graph: Graph, node: Node, strides: Sequence[Any]) -> Node | None:
    """A copy of a value that has these strides; of what it is a view of, if they leave gaps. None if there is none."""
    if (order := _order(node.meta["val"].shape, strides)) is not None:
        return _copied(graph, node, order)
    views: list[Node] = []
    while _is_view(node):
        views.insert(0, node)
        node = node.args[0]  # type: ignore[assignment]
        value = node.meta["val"].clone(memory_format=torch.contiguous_format)
        for view in views:
            value = view.target(value, *view.args[1:], **view.kwargs)  # type: ignore[operator]
        if _are_equal(value.shape, value.stride(), strides):
            return _copied(graph, node, range(node.meta["val"].dim()), views)
    return None


def _is_view(node: Node) -> bool:
    """Of one tensor, its first argument, and of numbers."""
    target = node.target
    is_view = isinstance(target, OpOverload) and (target.is_view or target is aten._unsafe_view.default)
    return is_view and [*node.all_input_nodes] == [node.args[0]] and isinstance(node.meta.get("val"), Tensor)


def _refreshed(node: Node) -> Any:
    """What a node's value is. A pass that pads a product leaves the strides of its views as they were."""
    value, target = node.meta.get("val"), node.target
    if not isinstance(target, OpOverload) or not isinstance(value, Tensor):
        return value
    if target.is_view or target is aten._unsafe_view.default:
        args, keywords = map_arg((node.args, node.kwargs), _refreshed)
        value = node.meta["val"] = target(*args, **keywords)
    return value


def _are_equal(shape: Sequence[Any], strides: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether strides are the same where that can be seen: not in dimensions of size 1."""
    if len(strides) != len(others):
        return False
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # it imports SymPy: a third of a second

    pairs = zip(shape, strides, others, strict=True)
    return all(statically_known_true(n == 1) or statically_known_true(a == b) for n, a, b in pairs)


def _order(shape: Sequence[Any], strides: Sequence[Any]) -> list[int] | None:
    """The order of dimensions in which values with these strides lie in memory without a gap; None if they do not."""
    dims = list(range(len(shape)))
    if all(type(n) is int for n in (*shape, *strides)):
        dims.sort(key=lambda d: -strides[d])
    dense = [math.prod(shape[e] for e in dims[at + 1 :]) for at in range(len(shape))]
    return dims if _are_equal([shape[d] for d in dims], [strides[d] for d in dims], dense) else None


def _copied(graph: Graph, node: Node, order: Sequence[int], views: Sequence[Node] = ()) -> Node:
    """A copy of a value that lies in memory in this order of dimensions, then these views of it."""
    back = [order.index(d) for d in range(len(order))]
    steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (aten.permute.default, (list(order),), {}),
        (aten.clone.default, (), {"memory_format": torch.contiguous_format}),
        (aten.permute.default, (back,), {}),
        *((view.target, view.args[1:], view.kwargs) for view in views),
    ]
    with graph.inserting_before(graph.output_node()):
        for target, args, keywords in steps:
            made = graph.call_function(target, (node, *args), keywords)
            made.meta = {**node.meta, "val": target(node.meta["val"], *args, **keywords)}
            node = made
    return node

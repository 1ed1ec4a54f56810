"""A graph that TorchDynamo captured: what it takes and returns, and what of it AOTAutograd traces."""

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from aotkit.capture.kept_graphs import Made, surroundings, texts_of
from aotkit.capture.recipe import Recipe
from aotkit.capture.shared_random import SharedRandom
from aotkit.capture.watching import EagersFunctions, has_other_steps
from aotkit.keep import is_kept, key_of
from aotkit.passes import SINCE_2_14, calls_of, copy_graph, description, strides_of, tensor_kind
from aotkit.random import Draws
from aotkit.runtime import mutation_pattern
from aotkit.text import is_installed
from aotkit.torch_private.aotautograd import WRAPS
from aotkit.torch_private.dynamo import end_graph
from aotkit.torch_private.fake_tensors import is_fake
from aotkit.torch_private.fx import graph_module
from aotkit.torch_private.switches import environment
from aotkit.torch_private.tensors import is_wrapper, overrides_operators

_NUMBER = re.compile(r"(?m)(, in \w+?)_\d+$")


def end_graph_of_foreign(gm: GraphModule, inputs: Sequence[Any]) -> None:
    """Have Dynamo leave in Python what a graph cannot do as eager does it, or the check not compare.

    Where an input overrides operators, the graph has in it what they do there, but runs on the input itself, to which
    they do it once more; and the results have lost their type.
    """
    for tensor in inputs:
        if isinstance(tensor, Tensor) and not is_fake(tensor) and overrides_operators(tensor):
            end_graph(f"an input is a {type(tensor).__name__}, which overrides operators")
    if any(isinstance(x, Tensor) and x.is_nested for x in (*inputs, *captured_results(gm))):
        end_graph("it takes or makes a nested tensor, which could not be checked")
    used = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder") if node.users]
    if any(isinstance(x, Tensor) and x.is_meta for x in (*used, *captured_results(gm))):
        end_graph("it takes or makes a tensor on device 'meta', without data to compute or to check")
    given = {id(node.meta.get("example_value")) for node in gm.graph.find_nodes(op="placeholder")}
    for method in ("__delattr__", "requires_grad_"):
        for node in gm.graph.find_nodes(op="call_method", target=method):
            if id(node.args[0].meta.get("example_value")) in given:
                end_graph(f"it calls {method!r} of an input, which a graph does not repeat")


def graph_to_trace(gm: GraphModule, *, shared: bool, seeded: bool) -> GraphModule:
    """A copy of a graph that Dynamo captured, in which dropout returns what it does in eager.

    AOTAutograd learns from it what Dynamo knows of its inputs: without that it makes no guards for inputs that share
    memory.

    Args:
        shared: whether it draws shared random numbers.
        seeded: whether it draws them from a seed that is its last input; without one, drawing raises SeedNeeded.
    """
    outer = copy_graph(gm)
    outer.meta.update(gm.meta)
    given = (node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder"))
    outer.meta[WRAPS] = any(isinstance(x, Tensor) and is_wrapper(x) for x in (*given, *captured_results(gm)))
    if hasattr(gm, "_param_name_to_source"):
        outer._param_name_to_source = gm._param_name_to_source
    inner, graph = outer.graph, Graph()
    inputs = []
    for node in gm.graph.find_nodes(op="placeholder"):
        inputs.append(graph.placeholder(node.target))
        inputs[-1].meta = dict(node.meta)
        if hasattr(node, "_dynamo_source"):
            inputs[-1]._dynamo_source = node._dynamo_source
    seed = graph.placeholder("seed") if seeded else None
    if seed is not None:
        seed._dynamo_source = None

    def run(seed: Tensor | None, *inputs: Any) -> Any:
        from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts

        with SharedRandom(Draws(seed)) if shared else nullcontext(), EagersFunctions():
            return PropagateUnbackedSymInts(outer, graph=inner).run(*inputs)

    graph.output(graph.call_function(run, (seed, *inputs)))
    outer.graph = graph
    return outer


def what_is_compiled(gm: GraphModule, inputs: Sequence[Any], recipe: Recipe) -> Sequence[str] | None:
    """A digest of all that decides what a graph that Dynamo captured is compiled to, but for the machine.

    None if that cannot be told so that it is the same in each process that runs the same.
    """
    around = surroundings(recipe) if is_kept() else None
    are_fixed = all(isinstance(x, Tensor) and all(type(n) is int for n in x.shape) for x in inputs)
    if around is None or not are_fixed or (text := description(gm)) is None or _has_policy(gm):
        return None
    # Which explanations show; the number that a captured function has is how many were before it.
    lines = [_NUMBER.sub(r"\1", str(node.meta.get("stack_trace"))) for node in gm.graph.nodes]
    # Whether they are leaves decides about strides of gradients.
    kinds = (f"{tensor_kind(x)} {x.is_leaf} {type(x)}" for x in inputs)
    return [key_of("captured", [*around, text, *lines, *kinds])]


def what_is_checked(gm: GraphModule, made: Made | None, recipe: Recipe, inputs: Sequence[Any]) -> Sequence[str] | None:
    """A digest of all that decides what a captured graph, and what was made of it, compute of these inputs' values."""
    if not is_kept() or made is None or (texts := texts_of(made)) is None or (captured := description(gm)) is None:
        return None
    shared = mutation_pattern(inputs, range(len(inputs)))
    surroundings = recipe.random, recipe.backend.reuses_saved, environment(), shared
    sizes = [x for x in inputs if isinstance(x, int)]
    return [key_of("checked", [captured, *texts, str(surroundings), str(sizes), *map(tensor_kind, inputs)])]


def _has_policy(gm: GraphModule) -> bool:
    """Whether a function of the user's decides what of it is recomputed."""
    return any("_checkpoint_context_fn" in m.meta for m in gm.modules() if isinstance(m, GraphModule))


def uncompiled_graph(gm: GraphModule) -> GraphModule:
    """A copy of a graph that Dynamo captured, for running it as the function does.

    Dynamo's own checkpoint operator leaves it to the compiler to draw the same random numbers again.
    """
    gm = copy_graph(gm)
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.tag_activation_checkpoint):
        node.target = _checkpoint
    assign_data(gm)
    gm.recompile()
    return gm


def _checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(function, *args, **{**kwargs, "use_reentrant": False})


def captured_names(gm: GraphModule) -> list[str]:
    """What the user calls the inputs of a graph that Dynamo captured: `layer.weight`, `args[0]`."""
    return [_captured_name(node) for node in gm.graph.find_nodes(op="placeholder")]


def fixed_scalars(gm: GraphModule) -> frozenset[int]:
    """Which inputs of a graph that Dynamo captured are made of Python numbers whose values its guards fix.

    Dynamo does that where a number that the graph makes of such numbers alone is one of its results.
    """
    places = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    # For what is made of numbers alone, which ones.
    numbers: dict[Node, frozenset[int]] = {}
    for node in gm.graph.nodes:
        if node in places:
            argument = node.meta.get("grapharg")
            if argument is not None and not argument.is_tensor:
                numbers[node] = frozenset({places[node]})
        elif node.all_input_nodes and all(n in numbers for n in node.all_input_nodes):
            numbers[node] = frozenset().union(*(numbers[n] for n in node.all_input_nodes))
    results: Any = gm.graph.output_node().args[0]
    return frozenset().union(*(numbers.get(r, ()) for r in results if isinstance(r, Node)))


def captured_results(gm: GraphModule) -> list[Any]:
    """The fake results of a graph that Dynamo captured; None for what it does not know, and for constants."""
    results: Any = gm.graph.output_node().args[0]
    return [node.meta.get("example_value") if isinstance(node, Node) else None for node in results]


def _captured_name(node: Any) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", node.name)
    path = str(name() if callable(name) else name)
    path = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", path)
    path = path.removeprefix("L['fn'].__self__.").removeprefix("L['self'].")
    return re.sub(r"^L\['kwargs'\]\['(\w+)'\]|^L\['(\w+)'\]", lambda m: m[1] or m[2], path)


def attributes_as_inputs(gm: GraphModule) -> tuple[GraphModule, Sequence[Tensor]]:
    """A graph that takes the tensors among its attributes as inputs, after the others; and these tensors.

    Such are the parameters of an optimizer whose step Dynamo captures. Who runs the graph on copies of its inputs would
    change these, the user's own.
    """
    tensors: dict[str, Tensor] = {}
    for node in gm.graph.find_nodes(op="get_attr"):
        if isinstance(value := attrgetter(node.target)(gm), Tensor):
            tensors[node.target] = value
    if not tensors:
        return gm, ()
    sources = dict(getattr(gm, "_param_name_to_source", {}))
    graph, copies = Graph(), dict[Node, Node]()
    for node in gm.graph.find_nodes(op="placeholder"):
        copies[node] = graph.node_copy(node)
        copies[node]._dynamo_source = getattr(node, "_dynamo_source", None)
    for name in tensors:
        placeholder = graph.placeholder(name.replace(".", "_"))
        placeholder._dynamo_source = sources.pop(name, None)
        for node in gm.graph.find_nodes(op="get_attr"):
            if node.target == name:
                placeholder.meta, copies[node] = dict(node.meta), placeholder
    output = graph.output(graph.graph_copy(gm.graph, copies))
    output.meta = dict(gm.graph.output_node().meta)
    lifted: Any = graph_module(gm, graph)
    lifted.meta.update(gm.meta)
    lifted._param_name_to_source = sources
    lifted.compile_subgraph_reason = getattr(gm, "compile_subgraph_reason", None)
    return lifted, list(tensors.values())


def strides_of_captured(gm: GraphModule) -> list[Sequence[Any] | None]:
    """The strides that the outputs of a graph that Dynamo captured have in eager; None where Dynamo does not know them.

    To it, dropout returns a copy, with strides of its own; without a mask it returns its input. Of views, see
    `has_other_steps`.
    """
    unknown: set[Node] = set()
    for node in gm.graph.nodes:
        given = [x.meta.get("example_value") if isinstance(x, Node) else x for x in node.args]
        is_other = bool(given) and has_other_steps(node.target, given, node.meta.get("example_value"))
        is_other = is_other or (node.target is F.dropout and _has_other_strides(node))
        if is_other or not unknown.isdisjoint(node.all_input_nodes):
            unknown.add(node)
    results: Any = gm.graph.output_node().args[0]
    return strides_of([None if r in unknown else x for r, x in zip(results, captured_results(gm), strict=True)])


def _has_other_strides(node: Node) -> bool:
    """Whether Dynamo may have given a result other strides than the first input has."""
    mine, given = strides_of([n.meta.get("example_value") for n in (node, node.all_input_nodes[0])])
    if mine is None or given is None:
        return False
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return len(mine) != len(given) or not all(statically_known_true(m == g) for m, g in zip(mine, given, strict=True))


def assigned_data(gm: GraphModule) -> Sequence[int]:
    """The inputs to whose `.data` a graph that Dynamo captured assigns; none, if it changes other storages besides."""
    inputs = gm.graph.find_nodes(op="placeholder")
    sets, assignments = calls_of(gm.graph, (Tensor.set_,)), _assignments_by_set(gm.graph)
    assigned = [node.args[0] for node in (*assignments, *calls_of(gm.graph, SINCE_2_14))]
    if len(sets) != len(assignments) or not all(node in inputs for node in assigned):
        return ()
    return [inputs.index(node) for node in assigned]


def assign_data(gm: GraphModule) -> None:
    """Let a graph that Dynamo captured assign `x.data` as the function does."""
    for set_, lowered in _assignments_by_set(gm.graph).items():
        set_.target = _assign
        lowered.replace_all_uses_with(set_)
        gm.graph.erase_node(lowered)


def _assignments_by_set(graph: Graph) -> dict[Node, Node]:
    """Where Dynamo has `set_` for `x.data = y`, and then counts that change of `x` back, as `.data` is not counted."""
    pairs = [(node, user) for node in calls_of(graph, (Tensor.set_,)) for user in node.users]
    return {node: user for node, user in pairs if getattr(user.target, "__name__", "") == "_lower_version_count_by_1"}


def _assign(x: Tensor, data: Tensor) -> Tensor:
    x.data = data
    return x


def graph_break_of(gm: GraphModule) -> str | None:
    """Why Dynamo ended this graph before the function's end, and where; None if it did not."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    frame = next((f for f in reversed(reason.user_stack) if not is_installed(f.filename)), None)
    frame = frame or (reason.user_stack[-1] if reason.user_stack else None)
    where = f" at {frame.filename}:{frame.lineno}" if frame else ""
    return f"{in_short(reason.reason)}{where}"


def in_short(reason: str) -> str:
    """A reason of Dynamo's without its advice."""
    return reason.strip().partition("\n")[0]

"""What the backward pass keeps of the function's inputs, which may have changed by then.

Autograd notices a change of a tensor that it keeps, and raises. It does not where a compiler has made another tensor
over the same memory, as Inductor does for each view: gradients would be computed from the new values (torch 2.13,
under torch.compile, too). So inputs are kept themselves here, and the backward graph takes the views.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from aotkit.passes.graphs import copied, mutated_inputs
from aotkit.passes.new_storages import replaced_inputs
from aotkit.passes.nodes import is_symbol, storage_of
from aotkit.passes.saved_conjugates import save_unconjugated
from aotkit.passes.views import views_behind
from aotkit.torch_private.aotautograd_metadata import saved_description
from aotkit.torch_private.fx import renew_code


def copy_saved_mutated_inputs(forward: GraphModule, num_outputs: int) -> None:
    """Save a copy of an input that the function changes in place: the input itself gets its new value after the call.

    And of what is in the new storage of an input: who changes the input later changes that, unseen by autograd.

    Inductor's passes drop the copy that AOTAutograd makes.
    """
    # Passes drop the copy that AOTAutograd makes of one before it takes a view of it.
    inputs = mutated_inputs(forward.graph)
    mutated = {storage_of(node) for node in (*inputs, *replaced_inputs(forward.graph).values())} - {None}
    inputs_end = next(node for node in forward.graph.nodes if node.op != "placeholder")
    output = forward.graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    for i in range(num_outputs, len(results)):
        if storage_of(results[i]) in mutated or views_behind(results[i])[0] in inputs:
            is_input = results[i].op == "placeholder"
            results[i] = copied(results[i], inputs_end if is_input else results[i].next)
            results[i].meta["saved_because"] = "copy of an input changed in place"
    output.args = (tuple(results),)
    renew_code(forward)


def save_viewed_inputs(forward: GraphModule, backward: GraphModule, num_outputs: int) -> None:
    """Where a view of an input is saved, save the input, once, and take the view in the backward graph.

    So, too, what others are conjugates of: see `saved_conjugates`.
    """
    save_unconjugated(forward, backward, num_outputs)
    results: Any = forward.graph.output_node().args[0]
    saved: list[Node] = list(results[num_outputs:])
    chains = {node: chain for node in saved if node.op != "placeholder" and (chain := _from_input(node))}
    if not chains:
        return
    symbols = [node for node in saved if is_symbol(node)]
    others = [node for node in saved if node not in symbols]
    # Forward returns the symbolic sizes last, backward takes them first. A value may be saved twice.
    taken = list(zip([*symbols, *others], backward.graph.find_nodes(op="placeholder"), strict=False))
    given = dict(reversed(taken))
    symbols = _with_those_of(chains.values(), symbols, forward)
    inputs = dict.fromkeys(chain[0] for chain in chains.values() if chain[0] not in given)
    for node in (*symbols, *inputs):
        if node not in given:
            given[node] = _new_placeholder(backward, node)
    # First, as values that are saved in other ways than autograd's own come last.
    kept = [(node, given[node]) for node in inputs]
    kept += [(node, placeholder) for node, placeholder in taken if node not in chains and not is_symbol(node)]
    _order(backward, [*(given[node] for node in symbols), *(placeholder for _, placeholder in kept)])
    _view_again(backward, chains, taken, given)
    _save(forward, num_outputs, [*(node for node, _ in kept), *symbols])
    views = {node for _, *chain in chains.values() for node in chain}
    for node in reversed(forward.graph.nodes):
        if node in views and not node.users:
            forward.graph.erase_node(node)
    renew_code(forward)


def _from_input(node: Node) -> list[Node]:
    """The input that a node is a view of, and the views that lead to it; nothing if it is none of an input."""
    chain = views_behind(node)
    return chain if chain[0].op == "placeholder" else []


def _with_those_of(chains: Iterable[Sequence[Node]], symbols: Sequence[Node], forward: GraphModule) -> list[Node]:
    """The saved sizes with those that views read, and, before them, the ones that sizes of the inputs consist of."""
    from torch.fx.experimental.symbolic_shapes import find_symbol_binding_fx_nodes, free_symbols

    read = [i for _, *views in chains for view in views for i in view.all_input_nodes if is_symbol(i)]
    bound = {node.meta["val"].node.expr for node in symbols}
    sources = find_symbol_binding_fx_nodes(forward.graph)
    wanted = (free_symbols(node.meta["val"]) for node in (*(chain[0] for chain in chains), *read))
    missing = [s for found in wanted for s in sorted(found, key=str) if s in sources and s not in bound]
    return list(dict.fromkeys([*(sources[s] for s in missing), *symbols, *read]))


def _new_placeholder(backward: GraphModule, node: Node) -> Node:
    with backward.graph.inserting_before(next(iter(backward.graph.nodes))):
        placeholder = backward.graph.placeholder(node.name)
    placeholder.meta = dict(node.meta)
    return placeholder


def _order(backward: GraphModule, placeholders: Sequence[Node]) -> None:
    """Let a graph take these inputs, in this order, before its others."""
    first = next(iter(backward.graph.nodes))
    for placeholder in reversed(placeholders):
        if placeholder is not first:
            first.prepend(placeholder)
        first = placeholder


def _view_again(
    backward: GraphModule,
    chains: Mapping[Node, Sequence[Node]],
    taken: Iterable[tuple[Node, Node]],
    given: Mapping[Node, Node],
) -> None:
    """Take views in the backward graph, in place of the placeholders that it had for them."""
    copies = {node: placeholder for node, placeholder in given.items() if node not in chains}
    with backward.graph.inserting_before(next(n for n in backward.graph.nodes if n.op != "placeholder")):
        for _, *views in chains.values():
            for node in views:
                if node not in copies:
                    copies[node] = backward.graph.node_copy(node, copies.__getitem__)
    for node, placeholder in taken:
        if node in chains:
            placeholder.replace_all_uses_with(copies[node])
            backward.graph.erase_node(placeholder)
    renew_code(backward)


def _save(forward: GraphModule, num_outputs: int, saved: Sequence[Node]) -> None:
    """Let the forward graph return these values besides its outputs."""
    output = forward.graph.output_node()
    before: Any = output.args[0]
    output.args = ((*before[:num_outputs], *saved),)
    if len(output.meta.get("desc", ())) == len(before):  # else a partitioner has changed the results, but not that
        known = dict(zip(before[num_outputs:], output.meta["desc"][num_outputs:], strict=True))
        output.meta["desc"] = [
            *output.meta["desc"][:num_outputs],
            *(known.get(node, saved_description(i)) for i, node in enumerate(saved)),
        ]
    if "output_stack_traces" in output.meta:
        traces = output.meta["output_stack_traces"][:num_outputs]
        output.meta["output_stack_traces"] = [*traces, *(node.meta.get("stack_trace") for node in saved)]

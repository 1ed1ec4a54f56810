"""What processes do together: which operators take part in it, and in what order a graph does.

Ranks run the same collectives in the same order, or wait for each other for ever. So nothing here is ever repeated,
merged with its like, left out, or moved across another, but where `torch.utils.checkpoint` asks to repeat it.
"""

import functools
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from aotkit.passes.nodes import asked_to_recompute
from aotkit.torch_private.dispatch import OpOverload

WAITS = "_c10d_functional::wait_tensor"
SAVED_BECAUSE = "collective communication"


@functools.cache
def group_argument(operator: Any) -> int | None:
    """The place of the argument that names the process group an operator communicates in; None if it does not."""
    arguments = operator._schema.arguments if isinstance(operator, OpOverload) else ()
    kinds = [(argument.name, str(argument.type)) for argument in arguments]
    return next((i for i, (name, kind) in enumerate(kinds) if name == "group_name" or "ProcessGroup" in kind), None)


def communicates(node: Node) -> bool:
    """Whether a node sends, receives, or waits for what does."""
    if group_argument(node.target) is not None:
        return True
    return isinstance(node.target, OpOverload) and node.target._schema.name == WAITS


def collectives(gm: GraphModule) -> list[Node]:
    """What a graph does together with other processes, in its order, without what only waits."""
    return [node for node in gm.graph.nodes if group_argument(node.target) is not None]


def group_of(node: Node) -> Any:
    """The name of the group of a collective, or the group."""
    place = group_argument(node.target)
    assert place is not None
    name = node.target._schema.arguments[place].name  # type: ignore[union-attr]
    return node.args[place] if place < len(node.args) else node.kwargs[name]


def program(gm: GraphModule) -> Sequence[str]:
    """The collectives of a graph in its order, as all ranks of a group have to have them: without sizes, and who sends.

    Shards may differ in size, and what is sent to whom by rank.
    """
    found = []
    for node in collectives(gm):
        words = [str(a) for a in (*node.args, *node.kwargs.values()) if isinstance(a, str)]
        found.append(" ".join([str(node.target), *words]))
    return found


def forbid_repeating_collectives(joint: GraphModule) -> None:
    """Have partitioners save what comes of communication where the backward pass reads it."""
    for node in joint.graph.nodes:
        if communicates(node) and not asked_to_recompute(node):
            node.meta.update(recompute=CheckpointPolicy.MUST_SAVE, saved_because=SAVED_BECAUSE)

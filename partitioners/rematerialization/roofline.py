"""What saving and recomputing take in time: memory traffic and arithmetic, as far as fusion does not hide them.

Kernels are fused between *barriers*: matrix products, convolutions, attention, sorting and the like. What is computed
within a fused kernel costs nothing to speak of; what has to be in memory is written once, and read by each that needs
it.
"""

from torch.fx import Node

from aotkit.aot.partition import Sides, flops
from aotkit.partitioners.rematerialization.devices import Device
from aotkit.partitioners.rematerialization.operators import is_cheap, is_free, is_pass
from aotkit.partitioners.rematerialization.problem import Problem
from aotkit.partitioners.rematerialization.tradeoff import Tradeoff
from aotkit.partitioners.rematerialization.values import Values, bytes_of, producer

UNIT = 1e-12  # seconds
ARITHMETIC = 1e-3  # of a fused operator, as a share of the time to write its result


def tradeoff(values: Values, sides: Sides, device: Device) -> Tradeoff:
    """Time against bytes. A value costs to save

    * a write, if the forward pass would not have it in memory anyway, and
    * a read in the backward pass, unless barriers read it: they read what is recomputed, too.

    And to recompute: a barrier runs again; a reduction reads its inputs once more; the rest is fused, but written if
    barriers read it. What the user asked to recompute is saved only if nothing else is possible.
    """
    work = [_work(node, device) for node in values.nodes]
    everything = int(sum(work) / UNIT) + 1 + sum(kept or 0 for kept in values.kept)
    save: list[int | None] = []
    again: list[int | None] = []
    for i, node in enumerate(values.nodes):
        pass_over = bytes_of(node) / device.bandwidth
        is_barrier = not is_cheap(producer(node))
        users = {(user in sides.backward, user.op == "output", is_cheap(user)) for user in _users(node)}
        in_memory = is_barrier or any(not late and not cheap for late, _, cheap in users)
        at_barrier, fused = (True, False, False) in users, (True, False, True) in users
        if values.kept[i] == 0:
            save.append(0)
        elif values.kept[i] is None or not values.in_forward[i]:
            save.append(None)
        else:
            seconds = pass_over * ((not in_memory) + (fused or not at_barrier))
            save.append(1 + int(seconds / UNIT) + (everything if values.asked_for[i] else 0))
        if not values.repeatable[i]:
            again.append(None)
        elif is_free(node) or values.constant[i] or not values.in_forward[i]:
            again.append(0)
        else:
            written = pass_over if at_barrier and not is_barrier else 0
            again.append(int((work[i] + written + (pass_over if is_barrier and fused else 0)) / UNIT))
    kept = [k if k and s else 0 for k, s in zip(values.kept, save, strict=True)]
    anyway = sum(work) + sum(_work(node, device) for node in sides.backward)
    return Tradeoff(Problem(values.inputs, save, again, values.needed), kept, int(anyway / UNIT))


def _work(node: Node, device: Device) -> float:
    """The seconds that a node takes to run again, in a kernel of its own or fused."""
    if is_free(node) or node.op != "call_function":
        return 0.0
    read = sum(bytes_of(i) for i in node.all_input_nodes) / device.bandwidth
    written = bytes_of(node) / device.bandwidth
    if not is_cheap(node):
        return max(flops(node) / device.flops, read + written) + device.launch
    return (read if is_pass(node) else 0.0) + ARITHMETIC * written


def _users(node: Node) -> list[Node]:
    """The nodes that read a value, through views of it."""
    found, queue = [], list(node.users)
    while queue:
        user = queue.pop()
        if is_free(user):
            queue += user.users
        else:
            found.append(user)
    return found

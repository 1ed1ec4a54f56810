"""Numbers on the CPU that the kernels of a GPU read, such as a scale."""

from torch.fx import GraphModule, Node

from aotkit.passes import IN_KERNELS, is_pointwise, is_tensor


def leave_numbers_to_kernels(joint: GraphModule) -> None:
    """Tag what is computed from numbers on the CPU alone, for partitioners: each kernel that reads it computes it.

    Inductor makes that a few instructions of a GPU's kernel, which gets the number itself. Saved for the backward pass,
    it would be a kernel on the CPU, which takes a C++ compiler half a minute at the worst, and a tensor for each.
    """
    if not any(_is_on_gpu(node) for node in joint.graph.nodes):
        return
    numbers = {node for node in joint.graph.find_nodes(op="placeholder") if _is_cpu_number(node)}
    for node in joint.graph.nodes:
        inputs = node.all_input_nodes
        if inputs and numbers.issuperset(inputs) and is_pointwise(node) and _is_cpu_number(node):
            numbers.add(node)
            node.meta[IN_KERNELS] = True


def _is_on_gpu(node: Node) -> bool:
    return is_tensor(node) and bool(node.meta["val"].is_cuda)


def _is_cpu_number(node: Node) -> bool:
    return is_tensor(node) and node.meta["val"].dim() == 0 and node.meta["val"].device.type == "cpu"

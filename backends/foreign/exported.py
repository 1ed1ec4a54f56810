"""An ExportedProgram of a graph, for importers that want one: nothing is traced again."""

from typing import Any

from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import GraphModule

from aotkit.passes import results_of
from aotkit.torch_private.dispatch import pytree


def exported(gm: GraphModule) -> ExportedProgram:
    """The program of a graph of tensors: each input is one, and so is each result, which no other one is."""
    inputs = [TensorArgument(node.name) for node in gm.graph.find_nodes(op="placeholder")]
    outputs = [TensorArgument(node.name) for node in results_of(gm)]
    signature = ExportGraphSignature(
        [InputSpec(InputKind.USER_INPUT, argument, None) for argument in inputs],
        [OutputSpec(OutputKind.USER_OUTPUT, argument, None) for argument in outputs],
    )
    given: tuple[Any, ...] = (tuple(argument.name for argument in inputs), {})
    made = tuple(argument.name for argument in outputs)
    call = ModuleCallSignature([*inputs], [*outputs], pytree.tree_structure(given), pytree.tree_structure(made))
    return ExportedProgram(
        root=gm,
        graph=gm.graph,
        graph_signature=signature,
        state_dict={},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", call)],
        example_inputs=None,
    )

"""What AOTAutograd tells of a function: its inputs, outputs and tangents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch.fx import GraphModule, Node

Layout = tuple[list[int], list[int]]  # sizes and strides


@dataclass
class Compiled:
    """What AOTAutograd made of a flat function.

    Attributes:
        call: takes the flat tensors, returns the flat outputs.
        mutated: indices of the inputs that it mutates; all, where AOTAutograd does not tell which.
        leaf_mutated: those that eager mode refuses to mutate when they are leaves that require gradients.
        guard: for `dynamic=True`, whether other tensors satisfy the shape conditions recorded while tracing.
        tangents: for each tangent of the backward graph, the index of the autograd node's output it belongs to.
        own_output: the index of an output that comes from the autograd node as it is; None if there is none.
        metadata: AOTAutograd's own, if it gave any.
        wraps: whether some inputs or outputs are known to be subclasses around other tensors. What AOTAutograd tells
            is about the graph of these others then.
        layouts: for `dynamic=True`, other sizes and strides for all inputs; whether `guard` accepts them is to be seen.
    """

    call: Callable[..., Sequence[Any]]
    mutated: Sequence[int]
    leaf_mutated: Sequence[int]
    guard: Callable[[Sequence[Tensor]], bool] | None
    tangents: Sequence[int]
    metadata: Any = None
    layouts: Sequence[Sequence[Layout]] = ()
    own_output: int | None = None
    wraps: bool = False


def compiled_function(
    call: Callable[..., Any], metadata: Any, guard: Callable[..., bool] | None, inputs: int
) -> Compiled:
    if metadata is None:
        return Compiled(call, (), (), guard, ())
    forget_donated(metadata)  # else torch refuses to retain a graph, which `sparing_retained` allows
    mutated, leaves = [], []
    for i, info in enumerate(metadata.input_info):
        if info.mutates_data or info.mutates_metadata:
            mutated.append(i)
            hidden = info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode
            if info.requires_grad and info.mutates_data and not hidden:
                leaves.append(i)
    if mutated and len(metadata.input_info) != inputs:  # it has merged inputs that share memory: other numbers
        mutated, leaves = list(range(inputs)), []
    tangents, own_output = _tangent_outputs(metadata), _own_output(metadata)
    return Compiled(call, mutated, leaves, guard, tangents, metadata, own_output=own_output)


def forget_donated(metadata: Any) -> None:
    """Have torch know of no saved values that the backward graph may overwrite."""
    if metadata.bw_donated_idxs:
        metadata.bw_donated_idxs.clear()  # where inputs are DTensors there are two accounts, with one list
    metadata.bw_donated_idxs = []


def _tangent_outputs(metadata: Any) -> Sequence[int]:
    """The autograd node returns mutated inputs, outputs and bases of views; only some of them have a tangent."""
    from torch._functorch._aot_autograd.schemas import OutputType

    own = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
    runtime = metadata.mutated_inp_runtime_indices
    inputs = [
        i for i, j in enumerate(runtime) if metadata.input_info[j].mutates_data and metadata.input_info[j].requires_grad
    ]
    outputs = [
        len(runtime) + i
        for i, info in enumerate(metadata.output_info)
        if info.output_type in own and _is_differentiable(info)
    ]
    first_base = len(runtime) + len(metadata.output_info)
    return [*inputs, *outputs, *range(first_base, first_base + metadata.num_intermediate_bases)]


def _own_output(metadata: Any) -> int | None:
    """Other outputs are inputs or views, and have autograd nodes of their own."""
    from torch._functorch._aot_autograd.schemas import OutputType

    outputs = enumerate(metadata.output_info)
    own = (i for i, info in outputs if info.output_type is OutputType.non_alias and _is_differentiable(info))
    return next(own, None)


def _is_differentiable(info: Any) -> bool:
    is_wanted = getattr(info, "requires_grad_for_backward", info.requires_grad)
    return bool(issubclass(info.raw_type, Tensor) and is_wanted)


def why_eager_outputs(metadata: Any) -> str | None:
    """Why no compiled graph can stand for a function with these outputs.

    Args:
        metadata: AOTAutograd's, of the function.
    """
    from torch._functorch._aot_autograd.schemas import OutputType

    if metadata is None or not torch.is_inference_mode_enabled():
        return None
    views = [info.base_idx for info in metadata.output_info if info.output_type is OutputType.alias_of_input]
    if any(metadata.input_info[i].requires_grad for i in views):
        # Eager's requires gradients unless it is detached. AOTAutograd's never does, and does not tell which is which.
        return "in inference mode, it returns a view of an input that requires gradients"
    return None


def why_not_lean(compiled: Compiled, graphs: Sequence[GraphModule], inputs: int) -> str | None:
    """Why a call has to take AOTAutograd's wrappers, or None if it need not.

    Args:
        graphs: forward, and backward if there is one.
        inputs: the number of its inputs.
    """
    from torch._dynamo import config
    from torch._functorch._aot_autograd.schemas import OutputType, SubclassCreationMeta

    if (metadata := compiled.metadata) is None:
        return "AOTAutograd told nothing about it"
    wrapped = (*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta, *metadata.subclass_tangent_meta)
    if compiled.wraps or any(isinstance(meta, SubclassCreationMeta) for meta in wrapped):
        return "an input, an output or a gradient is a tensor subclass around others"
    if config.compiled_autograd:
        return "compiled autograd is on, which knows AOTAutograd's nodes but not ours"
    if not all(_is_left_to_graph(info) for info in metadata.input_info):
        return "it mutates an input"
    plain = (OutputType.non_alias, OutputType.unsafe_view_alias)
    if not all(info.output_type in plain for info in metadata.output_info):
        return "an output is an input, or a view of an input or of another output"
    if not all(issubclass(info.raw_type, Tensor) for info in metadata.output_info):
        return "an output is a size that is left open"
    if metadata.grad_enabled_mutation is not None:
        return "it changes the gradient mode"
    if metadata.tokens or metadata.num_backward_tokens or metadata.num_graphsafe_rng_states:
        return "it has ordered effects, or random generators of its own"
    if metadata.num_tensors_saved_with_no_vc_check:
        return "a custom operator saves tensors that it changes itself"
    promised = [value for gm in graphs for value in _values(gm)]
    if any(isinstance(n, torch.SymInt) for v in promised if isinstance(v, Tensor) for n in v.shape):
        return "sizes are left open"
    if not all(v is None or isinstance(v, Tensor) for v in promised):
        return "a value that is no tensor is saved for backward"
    if len(graphs[0].graph.find_nodes(op="placeholder")) != inputs:
        return "an input is passed twice"
    return None


def _is_left_to_graph(info: Any) -> bool:
    """Whether all that becomes of an input, if anything, is what the graph itself writes into it."""
    if not (info.mutates_data or info.mutates_metadata or info.mutates_storage_metadata):
        return True
    return info.mutation_type.name == "MUTATED_IN_GRAPH" and not (info.requires_grad or info.mutates_storage_metadata)


def written_inputs(metadata: Any) -> list[int]:
    """The inputs that the graph itself changes, as autograd has to know."""
    return [*metadata.mutated_graph_handled_indices_seen_by_autograd] if metadata.keep_input_mutations else []


def _values(gm: GraphModule) -> list[Any]:
    """What the results of a graph are, and its inputs."""
    (output,) = gm.graph.find_nodes(op="output")
    nodes = [*gm.graph.find_nodes(op="placeholder"), *output.args[0]]
    return [node.meta.get("val") if isinstance(node, torch.fx.Node) else node for node in nodes]


def leaf_inputs() -> list[int]:
    """The inputs of the function that AOTAutograd compiles the backward graph of that were leaves when traced."""
    metadata = function_metadata()
    inputs = metadata.input_info if metadata else ()
    return [i for i, info in enumerate(inputs) if info.is_leaf]


def strides_by_result(of_outputs: Sequence[Sequence[Any] | None]) -> Mapping[int, Sequence[Any]]:
    """Number of a result of the forward graph -> strides. Mutated inputs come before outputs."""
    from torch._functorch._aot_autograd.schemas import OutputType

    metadata = function_metadata()
    if metadata is None or metadata.tokens or len(metadata.output_info) != len(of_outputs):
        return {}
    first = len(metadata.mutated_inp_runtime_indices)
    own = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
    pairs = enumerate(zip(metadata.output_info, of_outputs, strict=True))
    return {first + i: strides for i, (info, strides) in pairs if strides is not None and info.output_type in own}


def function_metadata() -> Any:
    """What AOTAutograd knows of the function that it compiles; None if it compiles none, or tells nothing."""
    context = TracingContext.try_get()
    return context.fw_metadata if context else None


def told_strides() -> list[Any] | None:
    """The strides of the results of the graph that was compiled last, as Inductor has told AOTAutograd."""
    context = TracingContext.try_get()
    return context.output_strides if context else None


def describe(joint: GraphModule, primals: Sequence[Node], outputs: Sequence[Any], tangents: Mapping[Node, int]) -> None:
    """Note on the nodes of a joint graph what tracing would have noted of them.

    Args:
        outputs: the results of the graph that are no gradients.
        tangents: to the number of the output that each belongs to.
    """
    from torch._functorch._aot_autograd import descriptors

    of_primals = [descriptors.PlainAOTInput(i) for i in range(len(primals))]
    of_outputs = [descriptors.PlainAOTOutput(i) for i in range(len(outputs))]
    joint.graph.output_node().meta["desc"] = [*of_outputs, *map(descriptors.GradAOTOutput, of_primals)]
    for node, description in zip(primals, of_primals, strict=True):
        node.meta.update(desc=description, partitioner_tag="is_forward")
    for node, i in tangents.items():
        node.meta.update(desc=descriptors.TangentAOTInput(of_outputs[i]), partitioner_tag="is_backward")


def saved_description(number: int) -> Any:
    """How AOTAutograd describes a value that is saved for the backward pass."""
    from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput

    return SavedForBackwardsAOTOutput(number)


def description_parts(value: Any) -> tuple[str, list[Any]] | None:
    """Class and fields of how AOTAutograd describes an input or a result of a graph; None if it is no such."""
    from torch._functorch._aot_autograd.descriptors import AOTInput, AOTOutput

    if not isinstance(value, AOTInput | AOTOutput):
        return None
    return type(value).__name__, [getattr(value, field.name) for field in fields(value)]


def described_from(name: str, values: Sequence[Any]) -> Any:
    """What has these parts.

    Raises:
        ValueError: AOTAutograd has no such class.
    """
    from torch._functorch._aot_autograd import descriptors

    kind = getattr(descriptors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, descriptors.AOTInput | descriptors.AOTOutput)):
        raise ValueError(f"{name!r} describes no input or result of a graph")
    return kind(*values)

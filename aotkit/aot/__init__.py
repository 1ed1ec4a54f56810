"""The only place that imports torch's private names; every difference between torch's versions lives here."""

from collections.abc import Sequence
from typing import Any

from torch.utils import _pytree

from aotkit.aot import native
from aotkit.aot.alone import (
    compile_alone,
    part_of_graph,
    random_states,
    scalars_on,
    set_random_states,
    without_autocast,
)
from aotkit.aot.apart import Apart
from aotkit.aot.backward import gradient_uses, refuse_leaf_mutation
from aotkit.aot.captured_attributes import as_traced, attributes_as_inputs
from aotkit.aot.changing_inputs import copy_changing_inputs, drop_unsaved_copies
from aotkit.aot.decompositions import core_decompositions
from aotkit.aot.donation import donated_inputs, sparing_retained
from aotkit.aot.dynamo import (
    MOST_DYNAMO_VARIANTS,
    captured_names,
    dynamo_backend,
    dynamo_compile,
    end_graph_of_foreign,
    ends_graph,
    fixed_scalars,
    graph_break_of,
    graph_breaks,
    graph_to_trace,
    in_short,
    is_dynamos_own,
    limits_hit,
    uncompiled_graph,
)
from aotkit.aot.environment import (
    REASONS_FOR_EAGER,
    SURROUNDINGS,
    SWITCHES,
    TensorReads,
    current_stream,
    environment,
    no_other_randomness,
    random_state,
    why_eager,
    without_compiled_autograd,
    without_saved_tensor_hooks,
)
from aotkit.aot.fakes import Fakes
from aotkit.aot.graph_modules import graph_module
from aotkit.aot.graphs import (
    beyond_values,
    boxed,
    copy_graph,
    copy_repeated_gradients,
    effect_tokens,
    generators_of,
    has_torch_operators,
    is_traced,
    outside_fake_mode,
    outside_tracing,
    separate_gradients,
    sparse_nodes,
)
from aotkit.aot.joint import JOINT_TAGS, are_alike, partition_alone, tangents_of
from aotkit.aot.lean import CompiledGraphs, way_in, why_eager_outputs
from aotkit.aot.new_storages import IS_NEW_STORAGE, assigned_data, assigning, return_new_storages
from aotkit.aot.output_strides import keep_strides, promise_strides, strides_of, strides_of_captured
from aotkit.aot.own_copies import keep_copies
from aotkit.aot.relays import if_on_cpu, relay, with_seed
from aotkit.aot.saved_inputs import copy_saved_mutated_inputs, save_viewed_inputs
from aotkit.aot.shared_random import SharedRandom
from aotkit.aot.statistics import correct_statistics
from aotkit.aot.tensors import (
    has_storage,
    hidden_overlap,
    is_for_dynamo,
    memory_pattern,
    mutation_pattern,
    negated,
    storage_users,
    tensor_guard,
    tensor_kind,
    why_eager_tensor,
)
from aotkit.aot.torchscript import nnc_fuser, nnc_fuses_on_cpu
from aotkit.aot.tracing import (
    COMPILE_LOCK,
    Compiled,
    compile_captured,
    is_data_dependent,
    is_foreign_tensor,
    trace,
)

# Nested containers, flat and back.
pytree = _pytree


def pytree_children(spec: Any) -> Sequence[Any]:
    """The structures inside a structure."""
    children = getattr(spec, "_children", None)
    return spec.children_specs if children is None else children  # type: ignore[no-any-return]


__all__ = [
    "COMPILE_LOCK",
    "IS_NEW_STORAGE",
    "JOINT_TAGS",
    "MOST_DYNAMO_VARIANTS",
    "REASONS_FOR_EAGER",
    "SURROUNDINGS",
    "SWITCHES",
    "Apart",
    "Compiled",
    "CompiledGraphs",
    "Fakes",
    "SharedRandom",
    "TensorReads",
    "are_alike",
    "as_traced",
    "assigned_data",
    "assigning",
    "attributes_as_inputs",
    "beyond_values",
    "boxed",
    "captured_names",
    "compile_alone",
    "compile_captured",
    "copy_changing_inputs",
    "copy_graph",
    "copy_repeated_gradients",
    "copy_saved_mutated_inputs",
    "core_decompositions",
    "correct_statistics",
    "current_stream",
    "donated_inputs",
    "drop_unsaved_copies",
    "dynamo_backend",
    "dynamo_compile",
    "effect_tokens",
    "end_graph_of_foreign",
    "ends_graph",
    "environment",
    "fixed_scalars",
    "generators_of",
    "gradient_uses",
    "graph_break_of",
    "graph_breaks",
    "graph_module",
    "graph_to_trace",
    "has_storage",
    "has_torch_operators",
    "hidden_overlap",
    "if_on_cpu",
    "in_short",
    "is_data_dependent",
    "is_dynamos_own",
    "is_for_dynamo",
    "is_foreign_tensor",
    "is_traced",
    "keep_copies",
    "keep_strides",
    "limits_hit",
    "memory_pattern",
    "mutation_pattern",
    "native",
    "negated",
    "nnc_fuser",
    "nnc_fuses_on_cpu",
    "no_other_randomness",
    "outside_fake_mode",
    "outside_tracing",
    "part_of_graph",
    "partition_alone",
    "promise_strides",
    "pytree",
    "pytree_children",
    "random_state",
    "random_states",
    "refuse_leaf_mutation",
    "relay",
    "return_new_storages",
    "save_viewed_inputs",
    "scalars_on",
    "separate_gradients",
    "set_random_states",
    "sparing_retained",
    "sparse_nodes",
    "storage_users",
    "strides_of",
    "strides_of_captured",
    "tangents_of",
    "tensor_guard",
    "tensor_kind",
    "trace",
    "uncompiled_graph",
    "way_in",
    "why_eager",
    "why_eager_outputs",
    "why_eager_tensor",
    "with_seed",
    "without_autocast",
    "without_compiled_autograd",
    "without_saved_tensor_hooks",
]

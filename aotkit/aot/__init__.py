"""The only place that imports torch's private names; every difference between torch's versions lives here."""

from collections.abc import Sequence
from typing import Any

from torch.utils import _pytree

from aotkit.aot.backward import gradient_uses, refuse_leaf_mutation, run_watched, unused_gradients
from aotkit.aot.dynamo import captured_names, dynamo_backend, dynamo_compile, uncompiled_graph
from aotkit.aot.environment import (
    TensorReads,
    dynamic_key,
    environment,
    identity_pattern,
    memory_pattern,
    negated,
    no_other_randomness,
    random_state,
    tensor_key,
    why_eager,
    why_eager_tensor,
    without_saved_tensor_hooks,
)
from aotkit.aot.graphs import (
    boxed,
    copy_graph,
    copy_saved_mutated_inputs,
    generators_of,
    is_traced,
    outside_fake_mode,
    sparse_nodes,
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
    "Compiled",
    "TensorReads",
    "boxed",
    "captured_names",
    "compile_captured",
    "copy_graph",
    "copy_saved_mutated_inputs",
    "dynamic_key",
    "dynamo_backend",
    "dynamo_compile",
    "environment",
    "generators_of",
    "gradient_uses",
    "identity_pattern",
    "is_data_dependent",
    "is_foreign_tensor",
    "is_traced",
    "memory_pattern",
    "negated",
    "nnc_fuser",
    "nnc_fuses_on_cpu",
    "no_other_randomness",
    "outside_fake_mode",
    "pytree",
    "pytree_children",
    "random_state",
    "refuse_leaf_mutation",
    "run_watched",
    "sparse_nodes",
    "tensor_key",
    "trace",
    "uncompiled_graph",
    "unused_gradients",
    "why_eager",
    "why_eager_tensor",
    "without_saved_tensor_hooks",
]

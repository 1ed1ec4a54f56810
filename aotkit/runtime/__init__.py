"""From the inputs of a call to compiled graphs, and from these to a backward pass."""

from aotkit.runtime.autograd_node import Gradients, Layout
from aotkit.runtime.backward import refuse_leaf_mutation
from aotkit.runtime.collector import collecting, collecting_later, without_garbage_collection
from aotkit.runtime.compile_lock import COMPILE_LOCK
from aotkit.runtime.disjoint import Apart
from aotkit.runtime.donation import donated_inputs, sparing_retained
from aotkit.runtime.sharing import HIDDEN_OVERLAP, hidden_overlap, memory_pattern, mutation_pattern
from aotkit.runtime.trampolines import if_on_cpu, outside_dynamo, relay, with_seed
from aotkit.runtime.warn import warn_of_eager_call, warn_of_fallback, warn_user
from aotkit.runtime.way_in import CompiledGraphs, Plain, WayIn, plain_way, way_in

__all__ = [
    "COMPILE_LOCK",
    "HIDDEN_OVERLAP",
    "Apart",
    "CompiledGraphs",
    "Gradients",
    "Layout",
    "Plain",
    "WayIn",
    "collecting",
    "collecting_later",
    "donated_inputs",
    "hidden_overlap",
    "if_on_cpu",
    "memory_pattern",
    "mutation_pattern",
    "outside_dynamo",
    "plain_way",
    "refuse_leaf_mutation",
    "relay",
    "sparing_retained",
    "warn_of_eager_call",
    "warn_of_fallback",
    "warn_user",
    "way_in",
    "with_seed",
    "without_garbage_collection",
]

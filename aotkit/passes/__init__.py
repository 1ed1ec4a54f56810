"""What is asked of graphs, and what aotkit changes in them, whichever compiler they go to."""

from aotkit.passes.changing_inputs import COPY, copy_changing_inputs, drop_unsaved_copies
from aotkit.passes.gradients import copy_repeated_gradients, gradient_uses, separate_gradients
from aotkit.passes.graphs import (
    copied,
    copy_graph,
    effect_tokens,
    generators_of,
    has_torch_operators,
    mutated_inputs,
    sparse_nodes,
)
from aotkit.passes.new_storages import IS_NEW_STORAGE, SINCE_2_14, _calls, assigning, return_new_storages
from aotkit.passes.nodes import (
    IN_KERNELS,
    changes_inputs,
    flops,
    is_in_kernels,
    is_pointwise,
    is_random,
    is_symbol,
    is_tensor,
    is_view,
    keeps_order,
    must_save,
    storage_of,
    storages,
)
from aotkit.passes.output_strides import keep_strides, promise_strides, show_results, strides_of
from aotkit.passes.own_copies import hidden_copies, keep_copies
from aotkit.passes.saved_inputs import copy_saved_mutated_inputs, save_viewed_inputs
from aotkit.passes.statistics import NORMALIZATIONS, correct_statistics
from aotkit.passes.views import share_viewed_memory, views_behind

__all__ = [
    "COPY",
    "IN_KERNELS",
    "IS_NEW_STORAGE",
    "NORMALIZATIONS",
    "SINCE_2_14",
    "_calls",
    "assigning",
    "changes_inputs",
    "copied",
    "copy_changing_inputs",
    "copy_graph",
    "copy_repeated_gradients",
    "copy_saved_mutated_inputs",
    "correct_statistics",
    "drop_unsaved_copies",
    "effect_tokens",
    "flops",
    "generators_of",
    "gradient_uses",
    "has_torch_operators",
    "hidden_copies",
    "is_in_kernels",
    "is_pointwise",
    "is_random",
    "is_symbol",
    "is_tensor",
    "is_view",
    "keep_copies",
    "keep_strides",
    "keeps_order",
    "must_save",
    "mutated_inputs",
    "promise_strides",
    "return_new_storages",
    "save_viewed_inputs",
    "separate_gradients",
    "share_viewed_memory",
    "show_results",
    "sparse_nodes",
    "storage_of",
    "storages",
    "strides_of",
    "views_behind",
]

"""Inductor as a user of functorch would hand it to `aot_function`: what aotkit is compared with."""

from functools import partial
from typing import Any


def inductor_for_functorch() -> dict[str, Any]:
    """Keywords of functorch's `aot_function` and `aot_module`, of what torch itself brings alone."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    return {
        "fw_compiler": compile_fx_inner,
        "bw_compiler": partial(compile_fx_inner, is_backward=True),
        "inference_compiler": partial(compile_fx_inner, is_inference=True),
        "partition_fn": min_cut_rematerialization_partition,
        "decompositions": select_decomp_table(),
    }

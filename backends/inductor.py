"""TorchInductor: `torch.compile`'s compiler, under any partitioner.

Random operators keep torch's own kernels and generator (`fallback_random`), so that a compiled function draws the
numbers that eager would draw from the same seed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._inductor.config as config
from torch import Tensor
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V
from torch.fx import GraphModule

from aotkit.aot import copy_repeated_gradients
from aotkit.aot.inductor import short_call
from aotkit.aot.isa import remembered_probes
from aotkit.interfaces import Backend

SETTINGS = {"fallback_random": True}


def compile_forward(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile a forward graph that has a backward graph."""
    return _compile(gm, example_inputs)


def compile_backward(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile a backward graph."""
    copy_repeated_gradients(gm)
    return _compile(gm, example_inputs, is_backward=True)


def compile_inference(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile the graph of a call without gradients."""
    fold_and_fuse(gm, example_inputs)
    return _compile(gm, example_inputs, is_inference=True)


def _compile(gm: GraphModule, example_inputs: Sequence[Tensor], **kind: bool) -> Callable[..., Any]:
    with config.patch(SETTINGS), remembered_probes():
        compiled = compile_fx_inner(gm, example_inputs, **kind)  # type: ignore[arg-type]
    return short_call(compiled, example_inputs)


def fold_and_fuse(gm: GraphModule, inputs: Any) -> None:
    """Inductor's passes over a whole graph, which it expects to have run: attention patterns, constant folding."""
    fake_mode = next((v.fake_mode for n in gm.graph.nodes if hasattr(v := n.meta.get("val"), "fake_mode")), None)
    with config.patch(SETTINGS), V.set_fake_mode(fake_mode):
        joint_graph_passes(gm)


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Inductor's table, without dropout: decomposed, it would draw other numbers than eager."""
    with config.patch(SETTINGS):
        table = dict(select_decomp_table())
    table.pop(torch.ops.aten.native_dropout.default, None)
    return table


backend = Backend(
    fw_compiler=compile_forward,
    bw_compiler=compile_backward,
    inference_compiler=compile_inference,
    decompositions=decompositions,
    joint_pass=fold_and_fuse,
)

"""IREE: a compiler of MLIR, on the CPU. Its own importer reads graphs of ATen's operators.

It gets the regions of a graph that it takes: `declines` says why it does not take a node.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils import dlpack

from aotkit.backends.foreign import CAST, Execute, call, foreign_backend

OPTIONS = (
    "--iree-llvmcpu-target-cpu=host",
    "--iree-opt-level=O3",
    # Bytes, of one thread; reductions over wide rows need more than its default of 32 KiB.
    "--iree-llvmcpu-stack-allocation-limit=1048576",
    "--iree-input-demote-f64-to-f32=false",  # which `_of_one_turn` needs
)
aten = torch.ops.aten
LACKS: dict[Any, str] = {
    **dict.fromkeys([aten.maximum.default, aten.minimum.default], "IREE loses NaN there"),
    torch.float64: "IREE computes float64 in float32, or has no functions of it",
    torch.uint8: "IREE takes uint8 for int8",
    torch.int8: "IREE's compiler crashes on int8",
    **{
        (angle, dtype): "IREE does not round a whole number to float32 before its sine"
        for angle in (aten.sin.default, aten.cos.default)
        for dtype in (torch.int64, torch.int32, torch.int16)
    },
}


@functools.cache
def _config() -> Any:
    """A device of one thread: calls of several threads have a context each."""
    import iree.runtime as runtime

    return runtime.Config("local-sync")


def build(gm: GraphModule) -> Any:
    """A program of one function, compiled in a process of its own."""
    import iree.compiler as compiler
    import iree.runtime as runtime
    from iree.compiler.extras.fx_importer import FxImporter
    from iree.compiler.ir import Context

    for name in (aten.sin.default, aten.cos.default):
        for node in gm.graph.find_nodes(op="call_function", target=name):
            _of_one_turn(gm.graph, node)
    importer = FxImporter(context=Context())
    importer.import_stateless_graph(gm.graph, func_name="main")
    program = compiler.compile_str(
        str(importer.module), target_backends=["llvm-cpu"], input_type="torch", extra_args=[*OPTIONS]
    )
    are_bool = [n.meta["val"].dtype is torch.bool for n in gm.graph.output_node().all_input_nodes]

    def make() -> Execute:
        config = _config()
        module = runtime.VmModule.copy_buffer(config.vm_instance, program)
        context = runtime.SystemContext(config=config)
        context.add_vm_module(module)
        return functools.partial(_execute, runtime, context.vm_context, module.lookup_function("main"), are_bool)

    return make


def _of_one_turn(graph: Graph, node: Node) -> None:
    """Let a sine or cosine be of an angle between -pi and pi. IREE's are wrong by 3e-8 times the angle.

    That is right up to angles of 1e15, beyond which float64 counts turns no better.
    """
    x, turn = node.args[0], 2 * math.pi
    with graph.inserting_before(node):
        wide = call(graph, CAST, x, dtype=torch.float64)
        turns = call(
            graph, aten.floor.default, call(graph, aten.add.Scalar, call(graph, aten.mul.Scalar, wide, 1 / turn), 0.5)
        )
        rest = call(graph, aten.sub.Tensor, wide, call(graph, aten.mul.Scalar, turns, turn))
        value = call(graph, node.target, call(graph, CAST, rest, dtype=torch.float32))
        value = call(graph, CAST, value, dtype=node.meta["val"].dtype)
    node.replace_all_uses_with(value)
    graph.erase_node(node)


def _execute(runtime: Any, context: Any, function: Any, are_bool: list[bool], inputs: list[Tensor]) -> Sequence[Tensor]:
    """One call. Nothing is copied: both sides share memory by dlpack, which has truth values as bytes."""
    device = _config().device
    args, results = runtime.VmVariantList(len(inputs)), runtime.VmVariantList(len(are_bool))
    for x in inputs:
        capsule = dlpack.to_dlpack(x.view(torch.uint8) if x.dtype is torch.bool else x)  # type: ignore[attr-defined]
        args.push_ref(device.from_dlpack_capsule(capsule))
    context.invoke(function, args, results)
    found = (results.get_as_object(i, runtime.HalBufferView) for i in range(len(are_bool)))
    return [dlpack.from_dlpack(device.create_dlpack_capsule(view, 1, 0)) for view in found]


backend = foreign_backend(
    "IREE",
    build,
    packages={"iree.compiler": "iree-base-compiler", "iree.runtime": "iree-base-runtime"},
    lacks=LACKS,
)

"""TVM, on the CPU, by its importer of exported programs.

It gets the regions of a graph that it takes: `declines` says why it does not take a node.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils import dlpack

from aotkit.backends.foreign import Execute, call, exported, foreign_backend

aten = torch.ops.aten
UNEXAMINED = (torch.float16, torch.bfloat16, torch.int16, torch.int8, torch.uint8)
LACKS: dict[Any, str] = {
    **dict.fromkeys(UNEXAMINED, "nobody has compared what TVM computes in this type with ATen"),
    **dict.fromkeys([aten.amax.default, aten.amin.default], "TVM's importer does not have it"),
    **dict.fromkeys([aten.__rshift__.Scalar, aten.__lshift__.Scalar], "TVM's importer does not have it"),
}


def build(gm: GraphModule) -> Callable[[], Execute]:
    """An executable. What runs it is a virtual machine, whose calls share memory, so that it serves one at a time."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    for node in gm.graph.find_nodes(op="call_function", target=aten.erf.default):
        _keep_nan(gm.graph, node)
    module = from_exported_program(exported(gm), run_ep_decomposition=False)
    with _target():
        program = relax.build(relax.transform.FastMathTransform()(module), target=_target())
    return lambda: functools.partial(
        _execute, tvm.runtime.from_dlpack, relax.VirtualMachine(program, tvm.cpu())["main"]
    )


def _keep_nan(graph: Graph, node: Node) -> None:
    """The polynomial of `FastMathTransform` takes NaN for infinity."""
    x, users = node.args[0], list(node.users)
    with graph.inserting_after(node):
        kept = graph.call_function(aten.where.self)
    with graph.inserting_before(kept):
        is_number = call(graph, aten.eq.Tensor, x, x)
    kept.args, kept.meta["val"] = (is_number, node, x), node.meta["val"]
    for user in users:
        user.replace_input_with(node, kept)


def _execute(shared: Callable[[Tensor], Any], run: Any, inputs: list[Tensor]) -> Sequence[Tensor]:
    """One call. Nothing is copied: both sides share memory by dlpack."""
    return [*map(dlpack.from_dlpack, run(*map(shared, inputs)))]


@functools.cache
def _target() -> Any:
    """This machine's CPU."""
    import tvm
    from tvm.target import codegen

    cores = torch.get_num_threads()
    return tvm.target.Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu(), "num-cores": cores})


backend = foreign_backend("TVM", build, packages={"tvm": "apache-tvm"}, lacks=LACKS)

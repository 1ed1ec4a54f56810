"""Compiles the kernels of all cases for an H100, without one: `python -m tests.backends.interpreted.compiled`."""

import itertools
import sys
import warnings

import torch
import triton
from torch.fx.experimental.proxy_tensor import make_fx
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import aotkit
from aotkit.backends.fuser import ENGINE, decompositions
from aotkit.backends.fuser.loops import lowered
from aotkit.backends.fuser.triton_code import HEADER
from aotkit.backends.fuser.triton_target import imported
from aotkit.backends.fusion_definition.region import compile_region
from aotkit.backends.fusion_definition.table import declining
from tests.backends.fusion_cases import CASES, inputs_of

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.bool: "i1",
}  # fmt: skip


def compiled(fused, inputs):
    """Compile the kernels of a definition; returns how many there are."""
    types = [x.dtype for x in inputs] + [buffer.type for buffer in fused.plan.buffers]
    for launch in fused.launches:
        signature = {f"b{n}": f"*{TYPES[types[n]]}" for n in launch.buffers}
        signature |= {f"n{n}": "i64" for n in launch.scalars}
        signature |= {name: "i32" if abs(n) < 2**31 else "i64" for name, n in launch.sizes.items()}
        function = getattr(imported(f"{HEADER}\n\n{launch.code}"), launch.name)
        source = ASTSource(fn=function, signature=signature, constexprs={})
        triton.compile(source, target=TARGET, options={"num_warps": launch.schedule.warps})
    return len(fused.launches)


class Compiled(type(ENGINE)):
    """An engine whose definitions are compiled instead of run; results have no values."""

    count = arguments = 0

    def definition(self):
        found = super().definition()
        found.execute = lambda inputs, *, device: self._compiled(found, inputs)
        return found

    def _compiled(self, definition, inputs):
        Compiled.count += compiled(definition.fused, inputs)
        Compiled.arguments += sum(len(launch.sizes) for launch in definition.fused.launches)
        _, results = lowered(definition.outputs)
        return [torch.ones(r.size, dtype=r.node.type).as_strided(r.size, r.stride) for r in results]


def main(names):
    warnings.simplefilter("ignore")
    engine = Compiled(ENGINE.target)
    backend = aotkit.Backend(
        lambda gm, inputs: compile_region(engine, gm, "cpu"), decompositions=decompositions, fixed_sizes=True,
        declines=declining("cpu", engine.name, engine), horizontal=True,
    )  # fmt: skip
    by_region = aotkit.by_region(backend, strict=True, min_region_size=1)
    for name, dtype in itertools.product(names, (torch.float16, torch.float64)):
        fn, args = inputs_of(name, dtype, "cpu")
        result = aotkit.compile(fn, backend=by_region, check=False)(*args)
        results = [result] if isinstance(result, torch.Tensor) else result
        if loss := [x.double().sum() for x in results if x.requires_grad]:
            sum(loss).backward()
    open_sizes(engine)
    print(Compiled.count)


def open_sizes(engine):
    """Kernels whose numbers are arguments: of rows that are whole, in chunks, shared and added up, and of tiles."""
    shapes = [(40, 37), (50, 61), (1030, 40), (1040, 48), (64, 20000), (65, 24000), (3, 100000), (5, 120000)]
    for fn in (lambda x: [x.softmax(-1), x.sum(0)], lambda x: [x.exp().t().clone() + x.shape[0]], lambda x: [x.var(1)]):
        gm = make_fx(fn, tracing_mode="symbolic", decomposition_table=dict(decompositions()))(torch.randn(40, 37))
        region = compile_region(engine, gm, "cpu")
        before = Compiled.arguments
        for shape in shapes:
            region([torch.randn(shape)])
        assert Compiled.arguments > before


if __name__ == "__main__":
    main(sys.argv[1:] or CASES)

"""A fuser of pointwise chains with Triton: each result of a region is one kernel."""

import linecache
import os
import threading

import torch
import triton
import triton.language as tl
from torch.fx import Node

from aotkit.backends.foreign import CAST, OPERATORS, foreign_backend

aten, BLOCK = torch.ops.aten, 1024
LOCK = threading.Lock()  # its interpreter, which runs kernels where there is no GPU, serves one thread at a time
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!="}
SIGNS |= {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
BOTH = ("Tensor", "Scalar")
# Operator -> the expression of its operands, in Triton's language.
TEXTS = {getattr(getattr(aten, f), kind): f"{{}} {sign} {{}}" for f, sign in SIGNS.items() for kind in BOTH}
TEXTS |= {
    getattr(aten, name).default: f"tl.{name}({{}})" for name in ("exp", "log", "sin", "cos", "abs", "floor", "ceil")
}
TEXTS |= {aten.neg.default: "-{}", aten.reciprocal.default: "1 / {}", aten.sqrt.default: "tl.sqrt_rn({})", CAST: "{}"}
TEXTS |= {aten.sigmoid.default: "1 / (1 + tl.exp(-{}))", aten.relu.default: "tl.where({0} <= 0, 0, {0})"}
TEXTS |= {aten.where.self: "tl.where({}, {}, {})", aten.full.default: "{1}", aten.logical_not.default: "{} == 0"}
TYPES = {torch.float32: "tl.float32", torch.float64: "tl.float64", torch.bool: "tl.int1"}


def build(gm):
    """A function that makes what runs the graph, as `foreign_backend` wants it."""
    inputs = gm.graph.find_nodes(op="placeholder")
    kernels = [(*kernel(result), result.meta["val"]) for result in gm.graph.output_node().args[0]]

    def execute(tensors):
        given, made = dict(zip(inputs, tensors, strict=True)), []
        for run, reads, like in kernels:
            made.append(torch.empty(like.shape, dtype=like.dtype, device=tensors[0].device))
            values = [given[node].expand(like.shape).contiguous() for node in reads]
            with LOCK:
                run[(triton.cdiv(like.numel(), BLOCK),)](*values, made[-1], like.numel(), BLOCK)
        return made

    return lambda: execute


def kernel(result):
    """A kernel that computes a result, and the inputs that it reads, in the result's shape."""
    needed = {result}
    for node in reversed(result.graph.nodes):
        needed |= {*node.all_input_nodes} if node in needed else set()
    ordered = [node for node in result.graph.nodes if node in needed]
    reads = [node for node in ordered if node.op == "placeholder"]
    lines = ["at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)"]
    lines += [f"{node} = tl.load(p_{node} + at, at < count)" for node in reads]
    for node in ordered[len(reads) :]:
        kind = dtype((*node.all_input_nodes, node)[0])  # of numbers
        operands = [str(x) if isinstance(x, Node) else f"tl.full([1], float('{x}'), {kind})" for x in node.args]
        lines.append(f"{node} = ({TEXTS[node.target].format(*operands)}).to({dtype(node)})")
    names = ", ".join([*(f"p_{node}" for node in reads), "made", "count", "BLOCK: tl.constexpr"])
    body = "\n    ".join([*lines, f"tl.store(made + at, {result}, at < count)"])
    text, file = f"@triton.jit\ndef kernel({names}):\n    {body}\n", f"<kernel {len(linecache.cache)}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file  # where Triton looks for the text
    space = {"triton": triton, "tl": tl}
    exec(compile(text, file, "exec"), space)
    return space["kernel"], reads


def dtype(node):
    return TYPES[node.meta["val"].dtype]


lacks = dict.fromkeys(OPERATORS - TEXTS.keys(), "it has no expression for that")
lacks |= dict.fromkeys((torch.float16, torch.bfloat16), "it has no numbers of that type")
lacks |= {getattr(torch, kind): "integers are not worth it" for kind in ("int64", "int32", "int16", "int8", "uint8")}
devices = dict.fromkeys(["cuda", "cpu"] if os.environ.get("TRITON_INTERPRET") else ["cuda"], lambda: None)
backend = foreign_backend("Triton", build, {"triton": "triton"}, lacks, devices)

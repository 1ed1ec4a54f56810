"""A fuser of pointwise chains with numba: each result of a region is one loop, compiled for the processor."""

import numba
import numpy
import torch
from torch.fx import Node

from aotkit.backends.foreign import CAST, OPERATORS, foreign_backend

aten = torch.ops.aten
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!="}
SIGNS |= {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
BOTH = ("Tensor", "Scalar")
FUNCTIONS = ("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sqrt", "floor", "ceil", "trunc")
# Operator -> the expression of its operands, in Python as numba compiles it.
TEXTS = {getattr(getattr(aten, f), kind): f"{{}} {sign} {{}}" for f, sign in SIGNS.items() for kind in BOTH}
TEXTS |= {getattr(aten, name).default: f"numpy.{name}({{}})" for name in FUNCTIONS}
TEXTS |= {aten.neg.default: "-{}", aten.abs.default: "abs({})", aten.where.self: "{1} if {0} else {2}"}
TEXTS |= {CAST: "{}", aten.full.default: "{1}", aten.logical_not.default: "not {}"}
TEXTS |= {aten.reciprocal.default: "1 / {}", aten.rsqrt.default: "1 / numpy.sqrt({})"}
TEXTS |= {aten.sigmoid.default: "1 / (1 + numpy.exp(-{}))", aten.relu.default: "0 if {0} <= 0 else {0}"}
TYPES = {torch.float32: "float32", torch.float64: "float64", torch.bool: "bool_"}


def build(gm):
    """A function that makes what runs the graph, as `foreign_backend` wants it."""
    inputs = gm.graph.find_nodes(op="placeholder")
    loops = [(*loop(result), result.meta["val"].shape, dtype(result)) for result in gm.graph.output_node().args[0]]

    def execute(tensors):
        arrays = {node: x.numpy() for node, x in zip(inputs, tensors, strict=True)}
        with numpy.errstate(all="ignore"):
            found = [(run(*(arrays[node] for node in reads)), shape, kind) for run, reads, shape, kind in loops]
        return [torch.from_numpy(numpy.require(numpy.broadcast_to(x, shape), kind, "CW")) for x, shape, kind in found]

    return lambda: execute


def loop(result):
    """A function of arrays that computes a result, and the inputs that it reads."""
    needed = {result}
    for node in reversed(result.graph.nodes):
        needed |= {*node.all_input_nodes} if node in needed else set()
    ordered = [node for node in result.graph.nodes if node in needed]
    reads = [node for node in ordered if node.op == "placeholder"]
    lines = [f"def element({', '.join(node.name for node in reads)}):"]
    for node in ordered[len(reads) :]:
        kind = dtype((*node.all_input_nodes, node)[0])  # of numbers
        operands = [x.name if isinstance(x, Node) else f"{kind}({x})" for x in node.args]
        lines.append(f"    {node.name} = {dtype(node)}({TEXTS[node.target].format(*operands)})")
    names = {name: getattr(numpy, name) for name in (*TYPES.values(), "inf", "nan")}
    exec("\n".join([*lines, f"    return {result.name}"]), {"numpy": numpy, **names}, names)
    return numba.vectorize(names["element"]), reads


def dtype(node):
    return TYPES[node.meta["val"].dtype]


lacks = dict.fromkeys(OPERATORS - TEXTS.keys(), "it has no expression for that")
lacks |= dict.fromkeys((torch.float16, torch.bfloat16), "it has no numbers of that type")
lacks |= {getattr(torch, kind): "integers are not worth it" for kind in ("int64", "int32", "int16", "int8", "uint8")}
backend = foreign_backend("numba", build, {"numba": "numba"}, lacks)

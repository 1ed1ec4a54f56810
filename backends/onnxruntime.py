"""ONNX Runtime, on the CPU: a region is a model of ONNX, which one may look at.

It gets the regions of a graph that it takes: `declines` says why it does not take a node.
"""

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.backends.foreign import Execute, exported, foreign_backend
from aotkit.passes import results_of

aten = torch.ops.aten
UNEXAMINED = (torch.float16, torch.int16, torch.int8, torch.uint8)
LACKS: dict[Any, str] = {
    **dict.fromkeys([aten.amax.default, aten.amin.default], "ONNX Runtime loses NaN there"),
    **dict.fromkeys(UNEXAMINED, "nobody has compared what ONNX Runtime computes in this type with ATen"),
    torch.bfloat16: "ONNX Runtime has hardly a kernel for bfloat16 on a CPU",
    (aten.erf.default, torch.float64): "ONNX Runtime has no erf of float64",
}


def build(gm: GraphModule) -> Callable[[], Execute]:
    """A session. It may run in several threads, each of which binds its own tensors."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model(gm).SerializeToString(), options, ["CPUExecutionProvider"])
    like = [n.meta["val"] for n in results_of(gm)]
    names, made = ([x.name for x in end] for end in (session.get_inputs(), session.get_outputs()))
    return lambda: functools.partial(_execute, session, names, made, [(v.shape, v.dtype) for v in like])


def model(gm: GraphModule) -> Any:
    """The graph as a model of ONNX."""
    with _quiet():
        program: Any = torch.onnx.export(exported(gm), (), dynamo=True, optimize=False, verbose=False)
    return program.model_proto


def _execute(
    session: Any, inputs: list[str], results: list[str], like: list[tuple[Any, torch.dtype]], given: list[Tensor]
) -> Sequence[Tensor]:
    """One call, in the memory of tensors."""
    made = [torch.empty(shape, dtype=dtype) for shape, dtype in like]
    binding = session.io_binding()
    for name, x in zip(inputs, given, strict=True):
        binding.bind_input(name, "cpu", 0, _types()[x.dtype], [*x.shape], x.data_ptr())
    for name, x in zip(results, made, strict=True):
        binding.bind_output(name, "cpu", 0, _types()[x.dtype], [*x.shape], x.data_ptr())
    session.run_with_iobinding(binding)
    return made


@functools.cache
def _types() -> dict[torch.dtype, Any]:
    """NumPy's."""
    import numpy

    known = (torch.float64, torch.float32, torch.int64, torch.int32, torch.bool)
    return {dtype: numpy.dtype(str(dtype).removeprefix("torch.")).type for dtype in known}


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter prints, logs and warns of what it does."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        log.setLevel(level)


backend = foreign_backend(
    "ONNX Runtime",
    build,
    packages={"onnxruntime": "onnxruntime", "onnx": "onnx", "onnxscript": "onnxscript"},
    lacks=LACKS,
)

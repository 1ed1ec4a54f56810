"""Which line of the user's code, and which module of the user's model, a graph node comes from."""

import contextlib
import importlib
import itertools
import linecache
import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.fx import traceback as fx_traceback
from torch.overrides import TorchFunctionMode

from aotkit.text import SourceLine, printable

_TORCH = os.path.dirname(torch.__file__)
_AOTKIT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = (
    _TORCH + os.sep,
    os.path.join(os.path.dirname(_TORCH), "functorch") + os.sep,
    os.path.dirname(importlib.__file__) + os.sep,
    contextlib.__file__,
    "<frozen ",
    "<eval_with_key>",  # the code that torch.fx generates for a graph
    "<aotkit ",  # the code of guards
)
# Folders of aotkit with functions and models as users write them.
_WRITTEN_AS_USERS = tuple(os.path.join(_AOTKIT, folder) + os.sep for folder in ("benchmark", "testing"))
_MODULE_CALL = nn.Module.__call__.__code__
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)(?:\n    (.*))?', re.MULTILINE)


@lru_cache(maxsize=4096)
def _is_library(file: str) -> bool:
    is_own = file.startswith(_AOTKIT + os.sep) and not file.startswith(_WRITTEN_AS_USERS)
    return is_own or file.startswith(_LIBRARIES)


class _ModuleNames:
    """What to call the modules that run below a function.

    Args:
        root: the module whose `forward` is the function, if it is one; its own name is "".
    """

    def __init__(self, root: nn.Module | None) -> None:
        self._root = root
        self._inside: dict[int, dict[int, str]] = {}

    def stack(self, frames: Sequence[FrameType]) -> dict[str, tuple[str, str]]:
        """The modules whose calls are among the frames, outermost first, as torch.fx has them: path -> (path, class).

        The class goes by its name, as in torch.export: graphs that are kept shall not keep modules. A module goes by
        its attributes: `layers.0.linear`. One that is not found inside the one that calls it goes by its class.
        """
        stack: dict[str, tuple[str, str]] = {}
        parent, path = self._root, ""
        for module in [frame.f_locals["self"] for frame in reversed(frames) if frame.f_code is _MODULE_CALL]:
            path = ".".join(filter(None, [path, self._name(module, parent)]))
            parent = module
            stack[path] = path, type(module).__name__
        return stack

    def _name(self, module: nn.Module, parent: nn.Module | None) -> str:
        if parent is None:
            return type(module).__name__
        if id(parent) not in self._inside:
            self._inside[id(parent)] = {id(inner): name for name, inner in parent.named_modules()}
        return self._inside[id(parent)].get(id(module), type(module).__name__)


class _Recorder(TorchFunctionMode):
    def __init__(self, boundary: int, root: nn.Module | None) -> None:
        super().__init__()
        self._boundary = boundary
        self._names = _ModuleNames(root)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Dynamo traces this very function where the user's code calls torch.cond and the like: it cannot read frames.
        if not torch.compiler.is_compiling():
            inside = itertools.takewhile(lambda one: id(one[0]) != self._boundary, walk_stack(sys._getframe(1)))
            frames = list(inside)
            if line := _users_line(frames):
                trace = f'  File "{line.file}", line {line.line}, in {line.function}\n    {line.code}\n'
                fx_traceback.set_stack_trace([trace])
                if fx_traceback.has_preserved_node_meta():
                    stack = self._names.stack([frame for frame, _ in frames])
                    fx_traceback.current_meta["nn_module_stack"] = stack
        return func(*args, **(kwargs or {}))


def recording_source(root: nn.Module | None = None) -> TorchFunctionMode:
    """A context in which each torch call notes the user's line and module for the nodes that are traced from it.

    Enter it inside the function that AOTAutograd traces, around the call of the user's function; the frame that calls
    `recording_source()` and those outside it do not count as the user's. AOTAutograd carries the lines over to the
    backward nodes. A call without a frame of the user's keeps the line that is already set, such as the one that
    Dynamo recorded. Nothing happens outside of a trace.

    Args:
        root: the module whose `forward` is traced, if it is one: modules are named by their place in it.
    """
    return _Recorder(id(sys._getframe(1)), root)


def _users_line(frames: Iterable[tuple[FrameType, int]]) -> SourceLine | None:
    """The first line of user code among frames and their lines."""
    for frame, number in frames:
        code = frame.f_code
        if not _is_library(code.co_filename):
            text = linecache.getline(code.co_filename, number, frame.f_globals).strip()
            return SourceLine(printable(code.co_filename), number, printable(text), printable(code.co_name))
    return None


def credit_backward(joint: GraphModule) -> None:
    """Give the backward nodes of a joint graph the line and module of the forward operation that they differentiate.

    Changes `node.meta["stack_trace"]` and `node.meta["nn_module_stack"]`. AOTAutograd credits the backward of an
    `autograd.Function` to the line of the operation before it, because autograd records the line when it creates the
    function's node, before its first torch call. The sequence number of the autograd node, which both sides carry, says
    it right.
    """
    forward: dict[int, Node] = {}
    for node in joint.graph.nodes:
        if node.meta.get("partitioner_tag") == "is_backward":
            node.meta.pop("nn_module_stack", None)  # the last one of forward
        number = node.meta.get("seq_nr")
        if number is None or node.meta.get("is_gradient_acc"):
            continue
        if node.meta.get("partitioner_tag") == "is_backward":
            if number in forward:
                credited = forward[number].meta
                node.meta |= {key: credited[key] for key in ("stack_trace", "nn_module_stack") if key in credited}
        elif node.meta.get("stack_trace"):
            # The first node has the number for its own; operations without an autograd node repeat it.
            forward.setdefault(number, node)


def source_line(node: Node) -> SourceLine | None:
    """The innermost line of user code that `node` was traced from; None if its trace has no frame outside libraries."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    for file, line, function, code in reversed(frames):
        if not _is_library(file):
            return SourceLine(printable(file), int(line), printable(code.strip()), printable(function))
    return None


def user_line(traceback: TracebackType | None) -> SourceLine | None:
    """The innermost line of user code in the traceback of an exception."""
    return _users_line(reversed(list(walk_tb(traceback))))


def module_stack(node: Node) -> list[tuple[str, str]]:
    """(path, name of the class) of the modules that `node` was traced in, outermost first, without one of path ""."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    # TorchDynamo writes L['fn'].__self__.layers.0 where the function is the module's own.
    named = (
        (re.sub(r"^[LG]\['\w+'\](\.__self__)?\.?", "", path), getattr(cls, "__name__", str(cls))) for path, cls in stack
    )
    return [(path, name) for path, name in named if path]


def module_path(node: Node) -> str:
    """The innermost module that `node` was traced from, `layers.0.linear`; "" if none is known, or the outermost."""
    stack = module_stack(node)
    return stack[-1][0] if stack else ""

"""`check="later"`: a captured graph runs uncompiled until a helper has compiled it, too."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.fx import GraphModule

from aotkit.capture.call_record import ran
from aotkit.capture.captured_graph import captured_names
from aotkit.capture.helper import Preparation, helper
from aotkit.capture.recipe import Recipe
from aotkit.capture.request import request_for
from aotkit.capture.sent_graph import NotSendable, packed, unpacked
from aotkit.errors import AotkitError
from aotkit.runtime import COMPILE_LOCK
from aotkit.torch_private.aotautograd import as_captured
from aotkit.torch_private.autograd import has_saved_tensor_hooks
from aotkit.torch_private.switches import why_eager

if TYPE_CHECKING:
    from aotkit.capture.piece import CapturedGraph

Check = bool | Literal["later"]


def require_check(check: Any, capture: str) -> None:
    """Refuse what is no value of the option `check`, or not together with `capture`.

    Raises:
        ValueError: it is none.
    """
    if not (isinstance(check, bool) or check == "later"):
        raise ValueError(f"check must be True, False or 'later', not {check!r}.")
    if check == "later" and capture == "aot":
        raise ValueError(
            "check='later' leaves capture to TorchDynamo, and capture='aot' does not allow that. Use check=True, or "
            "another capture."
        )


class Later:
    """What it takes to compile a graph when TorchDynamo, which captured it, is done.

    Nothing of it refers to values of inputs.

    Args:
        names: what the user calls its inputs.
    """

    def __init__(self, graph: bytes, names: Sequence[str], preparation: Preparation) -> None:
        self._graph = graph
        self._preparation = preparation
        self._names = names

    def is_due(self, *, wait: bool) -> bool:
        """Whether the call that runs now is to compile it.

        Args:
            wait: for the helper. Calls under hooks for saved tensors do so, too: a checkpoint takes it for an error
                where a call saves other tensors in the backward pass than it did before.
        """
        if wait or has_saved_tensor_hooks():
            self._preparation.wait()
            return True
        return self._preparation.is_done and not _is_disturbing()

    def compile(self, graph: "CapturedGraph") -> str | None:
        """Compile the captured graph, or have it fail; returns why it is to run uncompiled for good, if it is."""
        gm, inputs, mode = unpacked(self._graph)
        try:
            with as_captured(mode):
                graph.compile(gm, inputs, self._names)
        except AotkitError as e:
            graph.fail(e)
        except Exception as e:  # by which TorchDynamo would capture it otherwise
            return f"a graph of it cannot be traced: {type(e).__name__}: {e}"
        return None


def _is_disturbing() -> bool:
    """Whether to compile now would disturb what surrounds the call."""
    if COMPILE_LOCK.is_held_here() or why_eager() is not None:
        return True
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return bool(in_use and torch.cuda.is_current_stream_capturing())


def later_for(gm: GraphModule, inputs: Sequence[Any], recipe: Recipe) -> Later | None:
    """Have the helper compile a graph that is being captured; None if this process is to compile it now.

    Args:
        inputs: as `CapturedGraph.compile` takes them.
    """
    if has_saved_tensor_hooks() or ((call := ran.get()) is not None and call.waits):
        return None
    try:
        graph = packed(gm, inputs)
        request = request_for(graph, recipe)
    except NotSendable:
        return None
    return Later(graph, captured_names(gm), helper().prepare(request))

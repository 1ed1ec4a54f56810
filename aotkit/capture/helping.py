"""What the helper process does: it compiles graphs as the process that sent them will, and keeps nothing else of it."""

import os
import pickle
import queue
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NoReturn

import torch

from aotkit.capture.helper import LENGTH, NICE, received
from aotkit.capture.piece import CapturedGraph
from aotkit.capture.recipe import recipe_of
from aotkit.capture.request import Request
from aotkit.capture.sent_graph import NotSendable, unpacked
from aotkit.errors import AotkitError
from aotkit.torch_private.aotautograd import as_captured, with_settings
from aotkit.torch_private.switches import environment


def compile_for(request: Request) -> None:
    """Compile a graph as the process will that has sent it.

    Raises:
        NotSendable: what surrounds its call cannot be had here.
    """
    os.environ.update(request.variables)
    recipe = recipe_of(None, request.backend, request.partition, dynamic=False, random=request.random)
    with _surroundings(request):
        if environment() != request.environment:
            raise NotSendable("other switches of torch are set")
        gm, inputs, mode = unpacked(request.graph)
        with as_captured(mode):
            CapturedGraph(gm, (), recipe.for_inputs(inputs), _raise).compile(gm, inputs)


def _raise(error: AotkitError) -> NoReturn:
    raise error


@contextmanager
def _surroundings(request: Request) -> Iterator[None]:
    torch.set_default_dtype(request.default_dtype)
    torch.use_deterministic_algorithms(request.deterministic[0], warn_only=request.deterministic[1])
    if torch.get_float32_matmul_precision() != request.precision:  # to set it leaves other traces than not to
        torch.set_float32_matmul_precision(request.precision)
    torch.set_num_threads(request.threads)
    if request.device is not None:
        torch.cuda.set_device(request.device)
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(request.grad))
        for device, dtype in request.autocast.items():
            stack.enter_context(torch.autocast(device, dtype))
        stack.enter_context(with_settings(request.settings))
        yield


def help_out() -> NoReturn:
    """Compile what comes in, until the other side has gone."""
    with suppress(OSError, AttributeError):  # where there is none
        os.nice(NICE)
    answers = os.dup(1)
    with open(os.devnull, "w") as nowhere:  # what others print is no answer
        os.dup2(nowhere.fileno(), 1)
    wanted: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(wanted,), daemon=True).start()
    while True:
        message = wanted.get()
        said = ""
        try:
            compile_for(pickle.loads(message))
        except BaseException:
            said = traceback.format_exc()
        answer = said.encode()
        os.write(answers, LENGTH.pack(len(answer)) + answer)


def _listen(wanted: "queue.SimpleQueue[bytes]") -> None:
    """In a thread of its own: it ends the process with the other one, whatever this one is doing."""
    try:
        while True:
            wanted.put(received(0))
    finally:
        os._exit(0)

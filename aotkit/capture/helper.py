"""Another process that compiles graphs beside this one, so that what compilers keep is there when this one compiles.

It is a process, as tracing in a thread would disturb all others: while AOTAutograd traces, torch (2.11 to 2.15) turns
calls of whatever `torch.compile` has compiled into errors, sends calls of modules through its tracer, and at the end
puts the random generators back; and each operation would wait for the interpreter.

There is one, which starts with the first graph, takes them in order, and ends with this process. A forked child
compiles by itself what was asked for before.
"""

import atexit
import functools
import os
import queue
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

LENGTH = struct.Struct("<Q")  # of what follows, in bytes
# How much it gives way. At 19, beside a program that keeps all processors busy, it would hardly ever be done.
NICE = 5
_START = "import sys; sys.path[:] = {path!r}; from aotkit.capture.helping import help_out; help_out()"


class Preparation:
    """One graph on its way through the helper.

    Attributes:
        said: what the helper said of it: nothing if all went well.
    """

    def __init__(self) -> None:
        self._done = threading.Event()
        self._process = os.getpid()
        self.said = ""

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come of it."""
        return self._done.is_set() or os.getpid() != self._process  # in a forked child

    def wait(self) -> None:
        if not self.is_done:
            self._done.wait()

    def end(self, said: str) -> None:
        self.said = said
        self._done.set()


class Helper:
    """The process, and the thread that talks with it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted: queue.SimpleQueue[tuple[bytes, Preparation]] = queue.SimpleQueue()
        self._is_closed = False
        threading.Thread(target=self._serve, name="aotkit helper", daemon=True).start()

    def prepare(self, request: bytes) -> Preparation:
        """Have a graph compiled.

        Args:
            request: what `helping.Request` says of it.
        """
        preparation = Preparation()
        self._wanted.put((request, preparation))
        return preparation

    def _serve(self) -> None:
        while not self._is_closed:
            request, preparation = self._wanted.get()
            try:
                said = self._asked(request)
            except Exception as e:  # whatever it is: this process compiles by itself then
                self._stop()
                said = f"{type(e).__name__}: {e}"
            preparation.end(said)

    def _asked(self, request: bytes) -> str:
        if self._process is None:
            self._process = _started()
            if self._is_closed:
                raise EOFError("the program ends")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(LENGTH.pack(len(request)) + request)
        self._process.stdin.flush()
        return received(self._process.stdout.fileno()).decode()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(OSError):  # what was not sent yet
                    pipe.close()
            process.wait()

    def close(self) -> None:
        """End it, at once."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
            process.wait()


def received(descriptor: int) -> bytes:
    """One message from a pipe.

    Raises:
        EOFError: the other side has gone.
    """
    (length,) = LENGTH.unpack(_read(descriptor, LENGTH.size))
    return _read(descriptor, length)


def _read(descriptor: int, length: int) -> bytes:
    parts = []
    while length:
        if not (part := os.read(descriptor, length)):
            raise EOFError("the other process has ended")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _started() -> "subprocess.Popen[bytes]":
    path = [str(Path(__file__).parents[2]), *sys.path]
    # A process group of its own, so that Ctrl-C does not reach it: it ends with this process.
    return subprocess.Popen(
        [sys.executable, "-c", _START.format(path=path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, process_group=0,
    )  # fmt: skip


@functools.cache
def _helper_of(process: int) -> Helper:
    helper = Helper()
    atexit.register(_close_in, process, helper)
    return helper


def _close_in(process: int, helper: Helper) -> None:
    if os.getpid() == process:  # else a fork of it
        helper.close()


def helper() -> Helper:
    """That of this process."""
    return _helper_of(os.getpid())

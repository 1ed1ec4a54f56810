"""Compiled graphs that are recorded and replayed as CUDA graphs, without anybody's results being overwritten.

A `Recording` holds the kernels that one run launched, and the memory of its results. It is replayed where its results
of last time are in nobody's hands any more; where they are, another one is recorded. A backward graph is recorded in
the memory pool of the forward graph whose saved values it reads.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from aotkit.aot import storage_users
from aotkit.calls import Boxed
from aotkit.interfaces import Explained, Kernel

_log = logging.getLogger("aotkit")
MOST_RECORDINGS = 4  # of one graph; what finds none free then runs as usual


class Capture:
    """What `run(inputs)` launches. Nothing is computed before `replay`.

    Attributes:
        results: of `run`; what they hold is known after a replay.
    """

    def __init__(self, run: Boxed, inputs: Sequence[Tensor], pool: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate memory meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self.results = list(run(list(inputs)))
        self.replay = graph.replay


@dataclass(eq=False)
class Pool:
    """Memory that several recordings use one after the other.

    What is recorded later may keep its results where earlier ones keep what they need for a moment only. So one can be
    replayed if no results of its own, nor of any later one, are in use.

    Attributes:
        results: for each recording, the storages of its results, and how many refer to each if no caller does.
        abandoned: whether its first recording is not used any more.
    """

    handle: Any
    results: list[list[tuple[Any, int]]] = field(default_factory=list)
    abandoned: bool = False

    def is_free(self, position: int) -> bool:
        later = self.results[position:]
        return all(storage_users(storage) == unused for storages in later for storage, unused in storages)


class Recording:
    """The kernels of one run.

    Attributes:
        fixed: number of an input -> the address at which it has to be.
        addresses: of the results that it makes.
    """

    def __init__(
        self, run: Boxed, inputs: Sequence[Tensor], fixed: set[int], passed: dict[int, int], device: torch.device,
        pool: Pool,
    ) -> None:  # fmt: skip
        self.pool, self._position, self._passed = pool, len(pool.results), passed
        self.fixed = {i: inputs[i].data_ptr() for i in sorted(fixed)}
        self._layouts = [_layout(x) for x in inputs]
        self._buffers = {i: _like(x, device) for i, x in enumerate(inputs) if i not in fixed}
        self._fill(inputs)
        own = [self._buffers.get(i, x) for i, x in enumerate(inputs)]
        capture = Capture(run, own, pool.handle)
        self._replay = capture.replay
        self._results: list[Tensor | None] = capture.results
        memory = {_address(x): i for i, x in enumerate(own)}
        made = [t for k, t in enumerate(self._results) if t is not None and k not in passed]
        self._viewed = {id(t): memory[_address(t)] for t in made if _address(t) in memory}
        made = [t for t in made if id(t) not in self._viewed]
        storages = {_address(t): t.untyped_storage() for t in made}
        pool.results.append([(storage, storage_users(storage)) for storage in storages.values()])
        self.addresses = [t.data_ptr() for t in made]

    def fits(self, inputs: Sequence[Tensor], addresses: Sequence[int]) -> bool:
        """Whether replaying it computes what these inputs give, and overwrites nothing."""
        return (
            all(addresses[i] == address for i, address in self.fixed.items())
            and all(_layout(x) == layout for x, layout in zip(inputs, self._layouts, strict=True))
            and self.pool.is_free(self._position)
        )

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        self._fill(inputs)
        self._replay()
        return [self._given_out(k, result, inputs) for k, result in enumerate(self._results)]

    def _fill(self, inputs: Sequence[Tensor]) -> None:
        for i, buffer in self._buffers.items():
            _distinct(buffer).copy_(_distinct(inputs[i]), non_blocking=True)

    def _given_out(self, number: int, result: Tensor | None, inputs: Sequence[Tensor]) -> Tensor | None:
        if result is None:
            return None
        if (passed := self._passed.get(number)) is not None:
            return inputs[passed]
        viewed = self._viewed.get(id(result))
        if viewed is not None and (buffer := self._buffers.get(viewed)) is not None:
            given = inputs[viewed]
            offset = result.storage_offset() - buffer.storage_offset() + given.storage_offset()
            return given.as_strided(result.shape, result.stride(), offset)
        return result.detach()  # another tensor in the same memory


def _like(x: Tensor, device: torch.device) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


def _distinct(x: Tensor) -> Tensor:
    """Without the repetitions of an expanded tensor."""
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if stride == 0 and size > 1:
            x = x.narrow(dim, 0, 1)
    return x


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _layout(x: Tensor) -> tuple[Any, ...]:
    return x.shape, x.stride()


_lock = threading.RLock()
_made_by: WeakValueDictionary[int, Recording] = WeakValueDictionary()  # address of a result -> what makes it


class Replayed:
    """A compiled graph that is recorded on its second run.

    An input is taken to stay where it is, like a parameter, if it is there twice in a row or a recording makes it. One
    that moves nevertheless is copied from then on.

    Args:
        run: takes all tensors on the device.
        passed: number of a result -> number of the input that it is.
        explained: tells what `run` launches.
    """

    _boxed_call = True

    def __init__(self, run: Boxed, passed: dict[int, int], device: torch.device, explained: Explained) -> None:
        self._run, self._passed, self._device, self._explained = run, passed, device, explained
        self._before: list[int] | None = None
        self._moving: set[int] = set()
        self._recordings: list[Recording] = []
        self._stream: Any = None
        self._fails = False

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        inputs = list(args)
        args.clear()
        if not self._fails and not torch.cuda.is_current_stream_capturing():
            with _lock:
                if (recording := self._recording(inputs)) is not None:
                    return recording(inputs)
        return self.unrecorded(*inputs)

    def unrecorded(self, *inputs: Tensor) -> Sequence[Any]:
        """The same call, of which the recordings learn nothing: on inputs that will not come again."""
        return self._run([x.to(self._device) for x in inputs])

    def kernels(self, inputs: Sequence[Tensor]) -> Sequence[Kernel]:
        """Those that are recorded, and replayed at once."""
        return self._explained.kernels([x.to(self._device) for x in inputs])

    def observed(
        self, inputs: Sequence[Tensor], around: Callable[[int], AbstractContextManager[None]]
    ) -> Sequence[Any]:
        """The same kernels, one after the other."""
        return self._explained.observed([x.to(self._device) for x in inputs], around)

    def _recording(self, inputs: Sequence[Tensor]) -> Recording | None:
        """One that fits, or a new one."""
        addresses = [x.data_ptr() for x in inputs]
        before, self._before = self._before, addresses
        if before is None:
            return None
        stream = torch.cuda.current_stream(self._device)
        self._stream = self._stream or stream
        if stream != self._stream:  # its memory may still be in use on the other one
            return None
        fitting = (r for r in self._recordings if r.fits(inputs, addresses))
        return next(fitting, None) or self._recorded(inputs, addresses, before)

    def _recorded(self, inputs: Sequence[Tensor], addresses: Sequence[int], before: Sequence[int]) -> Recording | None:
        makers = {i: maker for i, address in enumerate(addresses) if (maker := _made_by.get(address)) is not None}
        moved = {i for r in self._recordings for i, address in r.fixed.items() if addresses[i] != address}
        self._moving |= moved - makers.keys()
        self._forget()
        if len(self._recordings) >= MOST_RECORDINGS:
            return None
        stay = {i for i, x in enumerate(inputs) if addresses[i] == before[i] and x.device == self._device}
        pool = next((maker.pool for maker in makers.values()), None) or Pool(torch.cuda.graph_pool_handle())
        fixed = (stay - self._moving) | makers.keys()
        try:
            recording = Recording(self._run, inputs, fixed, self._passed, self._device, pool)
        except Exception as e:
            self._fails = True
            _log.warning("A graph runs without CUDA graphs: recording it raised %s: %s", type(e).__name__, e)
            return None
        self._recordings.append(recording)
        _made_by.update(dict.fromkeys(recording.addresses, recording))
        return recording

    def _forget(self) -> None:
        """Drop what cannot fit any more: recordings for an input that moves, and what reads their results."""
        for recording in self._recordings:
            if self._moving & recording.fixed.keys():
                recording.pool.abandoned = True
        self._recordings = [r for r in self._recordings if not r.pool.abandoned]

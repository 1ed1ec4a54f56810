"""Compiled graphs that are recorded on their second run, and which recording a call replays.

A backward graph is recorded in the memory pool of the forward graph whose saved values it reads.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from aotkit.interfaces import Boxed
from aotkit.stages.cuda_graphs.recordings import Pool, Recording
from aotkit.stages.graph_launches import Explained, Kernel
from aotkit.torch_private.autograd import current_stream

_log = logging.getLogger("aotkit")
MOST_RECORDINGS = 4  # of one graph; what finds none free then runs as usual
PATIENCE = 2  # calls in a row from the same address
# us of an H200's host under torch 2.11: a launch of Inductor's, a replay with all around it, a copy before it.
LAUNCH, REPLAY, COPY = 9.0, 9.0, 6.0
LONGEST_PAUSE = 64  # calls

_data_ptr = Tensor.data_ptr
_lock = threading.RLock()
_made_by: WeakValueDictionary[int, Recording] = WeakValueDictionary()  # address of a result -> what makes it


def pays(launches: float, copies: int) -> bool:
    """Whether a replay, before which so many inputs are copied, takes the host less time than launching the kernels."""
    return launches * LAUNCH > REPLAY + copies * COPY


class Stays:
    """How many times in a row each input of a graph came from the same address.

    One that stays is read where it is, like a parameter. If it moves nevertheless, it has to stay eight times as long
    until it is taken to stay again. So nothing is recorded often, however inputs move, and inputs that are the same
    from some call on are not copied for ever.
    """

    def __init__(self) -> None:
        self._addresses: list[int] = []
        self._times: list[int] = []
        self._patience: dict[int, int] = {}

    def see(self, addresses: list[int]) -> None:
        """Those of one call."""
        if self._addresses:
            seen = zip(addresses, self._addresses, self._times, strict=True)
            self._times = [times + 1 if address == before else 1 for address, before, times in seen]
        else:
            self._times = [1] * len(addresses)
        self._addresses = addresses

    def moved(self, numbers: Iterable[int]) -> None:
        """Inputs that were taken to stay are not where they were."""
        for number in numbers:
            self._patience[number] = 8 * self._patience.get(number, PATIENCE)

    def stays(self, number: int) -> bool:
        return self._times[number] >= self._patience.get(number, PATIENCE)


class Replayed:
    """A compiled graph that is recorded on its second run.

    An input is taken to stay where it is if `Stays` says so or a recording makes it; others are copied.

    Args:
        run: takes all tensors on the device.
        passed: number of a result -> number of the input that it is.
        explained: tells what `run` launches.
        launches: as `launches_of` tells.
    """

    _boxed_call = True

    def __init__(
        self, run: Boxed, passed: dict[int, int], device: torch.device, explained: Explained, launches: float
    ) -> None:
        self._run, self._passed, self._device, self._explained = run, passed, device, explained
        self._launches = launches
        self._stays = Stays()
        self._ran = False
        self._pause, self._rest = 1, 0  # calls between two that look for a recording, while none pays; those still left
        self._recordings: list[Recording] = []
        self._stream: int | None = None
        self._fails = False

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        inputs = list(args)
        args.clear()
        if self._rest:
            self._rest -= 1
        elif not self._fails and not torch.cuda.is_current_stream_capturing():
            with _lock:
                if (recording := self._recording(inputs)) is not None:
                    return recording(inputs)
        return self.unrecorded(*inputs)

    def unrecorded(self, *inputs: Tensor) -> Sequence[Any]:
        """The same call, of which the recordings learn nothing: on inputs that will not come again."""
        return self._run(self._on_device(inputs))

    def kernels(self, inputs: Sequence[Tensor]) -> Sequence[Kernel]:
        """Those that are recorded, and replayed at once."""
        return self._explained.kernels(self._on_device(inputs))

    def observed(
        self, inputs: Sequence[Tensor], around: Callable[[int], AbstractContextManager[None]]
    ) -> Sequence[Any]:
        """The same kernels, one after the other."""
        return self._explained.observed(self._on_device(inputs), around)

    def _on_device(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [x if x.is_cuda else x.to(self._device) for x in inputs]

    def _recording(self, inputs: Sequence[Tensor]) -> Recording | None:
        """One that fits, or a new one."""
        stream = current_stream(self._device)
        if self._stream not in (None, stream):  # its memory may still be in use on the other one
            return None
        addresses = list(map(_data_ptr, inputs))
        fitting = next((r for r in self._recordings if r.fits(inputs, addresses)), None)
        if fitting is not None and not fitting.copied:
            return fitting
        self._stays.see(addresses)
        if not self._ran:
            self._ran = True
            return None
        self._stream = stream
        return self._better(inputs, addresses, fitting) or fitting

    def _better(
        self, inputs: Sequence[Tensor], addresses: Sequence[int], fitting: Recording | None
    ) -> Recording | None:
        """A new one that copies less than what fits, if it can be had.

        A recording is dropped, with all that shares its memory, where an input that it reads in its place has moved, or
        where one that it copies stays.
        """
        found = {i: maker for i, address in enumerate(addresses) if (maker := _made_by.get(address)) is not None}
        makers = {i: maker for i, maker in found.items() if not maker.pool.abandoned}
        for recording in self._recordings:
            if moved := recording.moved(addresses):
                recording.pool.abandoned = True
                self._stays.moved(moved)
        stay = {i for i, x in enumerate(inputs) if x.device == self._device and self._stays.stays(i)}
        if fitting is not None:
            if fitting.copied.isdisjoint(stay | makers.keys()):
                return None
            if not fitting.copied.isdisjoint(stay):
                fitting.pool.abandoned = True
        self._recordings = [r for r in self._recordings if not r.pool.abandoned]
        if len(self._recordings) >= MOST_RECORDINGS:
            return None
        if pays(self._launches, copies=len(inputs) - len(stay | makers.keys())):
            return self._recorded(inputs, stay, makers)
        self._rest = self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return None

    def _recorded(self, inputs: Sequence[Tensor], stay: set[int], makers: dict[int, Recording]) -> Recording | None:
        pool = next((maker.pool for maker in makers.values()), None) or Pool(torch.cuda.graph_pool_handle())
        if pool.abandoned:  # just now: what makes inputs will be recorded anew
            return None
        try:
            recording = Recording(self._run, inputs, stay, makers.keys(), self._passed, self._device, pool)
        except Exception as e:
            self._fails = True
            _log.warning("A graph runs without CUDA graphs: recording it raised %s: %s", type(e).__name__, e)
            return None
        self._recordings.append(recording)
        self._recordings.sort(key=lambda r: len(r.copied))
        _made_by.update(dict.fromkeys(recording.addresses, recording))
        return recording

"""Compiled graphs that are recorded and replayed as CUDA graphs, without anybody's results being overwritten.

A `Recording` holds the kernels that one run launched, and the memory of its results. It is replayed where its results
of last time are in nobody's hands any more; where they are, `cuda_graphs/replay.py` records another one.

The host's time of a replay is what counts for small graphs: what need not be looked at again in each call is decided
when it is recorded.
"""

import functools
import operator
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from aotkit.interfaces import Boxed
from aotkit.torch_private.tensors import storage_users, tensor_guard


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
        storages: of the results of all recordings, in their order.
        unused: how many refer to each storage if no caller does.
        abandoned: none of its recordings is to be replayed any more.
    """

    handle: Any
    storages: list[torch.UntypedStorage] = field(default_factory=list)
    unused: list[int] = field(default_factory=list)
    abandoned: bool = False

    def add(self, storages: Sequence[torch.UntypedStorage]) -> None:
        """Those of the results of another recording, which no caller has yet."""
        self.storages += storages
        self.unused += storage_users(storages)

    def is_free(self, position: int) -> bool:
        """Whether no caller has any of the storages from this one on, and the pool is not abandoned."""
        return not self.abandoned and storage_users(self.storages[position:]) == self.unused[position:]


Given = Callable[[Sequence[Tensor]], Tensor | None]


class Recording:
    """The kernels of one run.

    Args:
        run: what is recorded.
        stay: numbers of inputs that are read where they are.
        made: numbers of others, which a recording makes.
        passed: number of a result -> number of the input that it is.

    Attributes:
        copied: the numbers of inputs on the device that are copied first.
        addresses: of the results that it makes.
    """

    def __init__(
        self, run: Boxed, inputs: Sequence[Tensor], stay: Set[int], made: Set[int], passed: dict[int, int],
        device: torch.device, pool: Pool,
    ) -> None:  # fmt: skip
        self.pool, self._position = pool, len(pool.storages)
        self._stay = {i: inputs[i].data_ptr() for i in stay - made}
        self._fixed = sorted(stay | made)
        self._places = [inputs[i].data_ptr() for i in self._fixed]
        self._is_alike, self._layouts = tensor_guard(inputs), [_layout(x) for x in inputs]
        buffers = {i: _like(x, device) for i, x in enumerate(inputs) if i not in self._fixed}
        self.copied = {i for i in buffers if inputs[i].device == device}
        self._fills = [_fill(i, inputs[i], buffer) for i, buffer in buffers.items()]
        for fill in self._fills:
            fill(inputs)
        own = [buffers.get(i, x) for i, x in enumerate(inputs)]
        capture = Capture(run, own, pool.handle)
        self._replay = capture.replay
        memory = {_address(x): i for i, x in enumerate(own)}
        own_results = list[Tensor]()
        self._given = dict[int, Given]()  # the other results: number -> what gives it
        self._results: list[Tensor | None] = list(capture.results)
        for k, result in enumerate(capture.results):
            if (i := passed.get(k)) is not None:
                self._given[k] = operator.itemgetter(i)
            elif result is not None and (i := memory.get(_address(result))) is not None:
                if i in buffers:
                    self._given[k] = functools.partial(_view_of, i, result, int(buffers[i].storage_offset()))
            elif result is not None:
                own_results.append(result)
        for k in self._given:
            self._results[k] = None
        pool.add(list({_address(t): t.untyped_storage() for t in own_results}.values()))
        self.addresses = [t.data_ptr() for t in own_results]

    def moved(self, addresses: Sequence[int]) -> list[int]:
        """The inputs that were to stay, and did not."""
        return [i for i, address in self._stay.items() if addresses[i] != address]

    def fits(self, inputs: Sequence[Tensor], addresses: Sequence[int]) -> bool:
        """Whether replaying it computes what these inputs give, and overwrites nothing."""
        return (
            [addresses[i] for i in self._fixed] == self._places
            # The guard is quick, but asks for more.
            and (self._is_alike(*inputs) or [_layout(x) for x in inputs] == self._layouts)
            and self.pool.is_free(self._position)
        )

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        for fill in self._fills:
            fill(inputs)
        self._replay()
        # Other tensors in the same memory.
        results = [None if result is None else result.detach() for result in self._results]
        for k, give in self._given.items():
            results[k] = give(inputs)
        return results


def _like(x: Tensor, device: torch.device) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


def _fill(number: int, x: Tensor, buffer: Tensor) -> Callable[[Sequence[Tensor]], object]:
    """What copies an input like `x` into a buffer."""
    repeated = [dim for dim in range(x.dim()) if x.stride(dim) == 0 and x.shape[dim] > 1]
    copy = _without_repetitions(buffer, repeated).copy_
    if not repeated:
        return lambda inputs: copy(inputs[number], non_blocking=True)
    return lambda inputs: copy(_without_repetitions(inputs[number], repeated), non_blocking=True)


def _without_repetitions(x: Tensor, repeated: Sequence[int]) -> Tensor:
    for dim in repeated:
        x = x.narrow(dim, 0, 1)
    return x


def _view_of(number: int, result: Tensor, begin: int, inputs: Sequence[Tensor]) -> Tensor:
    """What a result is of a buffer that begins there, of the input itself."""
    given = inputs[number]
    return given.as_strided(result.shape, result.stride(), result.storage_offset() - begin + given.storage_offset())


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _layout(x: Tensor) -> tuple[Any, ...]:
    return x.shape, x.stride()

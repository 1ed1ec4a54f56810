"""Compile many models at once, one process each, and then time them one at a time."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from tests.models.speed.measure import Options, Row, measure
from tests.models.zoo import Training


def measure_together(
    models: Mapping[str, Callable[[], Training]], variants: Sequence[str], options: Options
) -> Iterator[tuple[str, list[Row]]]:
    """What `measure` finds for each model; one whose process ends too early has its exit code for an error."""
    context = multiprocessing.get_context("spawn")  # CUDA cannot be forked
    running = []
    for name, build in models.items():
        ours, theirs = context.Pipe()
        process = context.Process(target=_measure, args=(theirs, build, variants, options), daemon=True)
        process.start()
        theirs.close()  # so that the end of the process ends the pipe
        running.append((name, process, ours))
    for _, _, pipe in running:
        _received(pipe)
    for name, process, pipe in running:
        rows = None
        if process.is_alive():
            pipe.send("go")
            rows = _received(pipe)
        process.join()
        yield name, rows or [Row(v, error=f"its process ended with exit code {process.exitcode}") for v in variants]


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        return None


def _measure(pipe: Connection, build: Callable[[], Training], variants: Sequence[str], options: Options) -> None:
    def wait() -> None:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # others compile beside it
        pipe.send("compiled")
        pipe.recv()

    pipe.send(measure(build, variants, before_timing=wait, **options))

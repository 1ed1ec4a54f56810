"""A GPU prepares a short kernel while the one before it ends: programmatic dependent launches, from Hopper on.

The kernel before it says as it begins that the next one may be launched. That one waits, before it touches memory,
until the one before has finished and what it has written can be seen. Only what the graph was called with may be loaded
before, if the kernel before was launched as usual: then all that was finished when it began. So nothing is computed in
another order; what is saved is the way from one kernel to the next. Only short kernels are launched so: where programs
are as many as multiprocessors, those that come early would share the first ones that are free. On an H200, with
backward in float16 of [8, 512, 1024], layer norm of a sum takes 28.3 us instead of 31.5, and 39.2 if all kernels are
launched so. Cross entropy of [2, 4096, 4096], whose last kernel counts the targets while it waits, takes 22.8 us
instead of 24.1. Kernels that have no part in this have none of its instructions, which cost each program a moment.

Inductor can launch its kernels so (`triton.enable_pdl`, switched off), but looks for the last place where each may
wait, which under torch 2.11 gave wrong gradients here.
"""

import re
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import sympy  # type: ignore[import-untyped]
import torch._inductor.config as config
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.scheduler import ForeachKernelSchedulerNode, FusedSchedulerNode, SchedulerNode
from torch._inductor.virtualized import V

from aotkit.torch_private.kernel_changes.statements import made_by, names_in, texts_of

_OPTION = {"triton.enable_pdl": True}
SHORT = 2**15  # elements
_POINTER = re.compile(r"\w+_ptr\d*")
_ORDERED = re.compile(r"barrier|assert|atomic")
_kernels: Any = TritonKernel
_is_possible: Any = TritonKernel._enable_pdl_codegen


@contextmanager
def dependent_launches() -> Iterator[None]:
    """For the time of compiling a graph. What other threads compile meanwhile gets the same."""
    with (
        config.patch(_OPTION),
        patch.object(TritonKernel, "_enable_pdl_codegen", staticmethod(_is_dependent)),
        patch.object(TritonKernel, "_handle_pdl_before_access", _nothing),
        patch.object(TritonKernel, "_handle_pdl_after_load", _nothing),
        patch.object(TritonKernel, "_filter_pdl", _begin),
    ):
        yield


def beginning(*, waits: bool, is_followed: bool = False) -> list[str]:
    """The statements with which a kernel has to begin.

    Args:
        waits: it is launched early, by `launch_pdl` of its `triton_meta`.
        is_followed: the next kernel may be.
    """
    return [_kernels.GDC_LAUNCH] * is_followed + [_kernels.GDC_WAIT] * waits


def is_supported() -> bool:
    """By the GPU, and by the code that launches: wrappers in C++ do it in a way of their own."""
    return bool(_is_possible()) and not V.graph.cpp_wrapper


def _a_short_one_follows() -> bool:
    """Whether the kernel after the one that is being written is short."""
    scheduler = V.graph.scheduler
    found = (after for node, after in pairwise(scheduler.nodes) if node is scheduler.current_node)
    return any(_is_whole(node) and _is_short(node.group[1]) for node in found)


def _is_whole(node: Any) -> bool:
    """Whether a node is one kernel on the GPU, and not one of several that are combined."""
    kinds = SchedulerNode, FusedSchedulerNode
    return isinstance(node, kinds) and not isinstance(node, ForeachKernelSchedulerNode) and node.is_gpu()


def _is_short(numels: Any) -> bool:
    return bool(V.graph.sizevars.optimization_hint(sympy.prod(numels), fallback=SHORT + 1) <= SHORT)


def _follows_a_usual_one() -> bool:
    """Whether the kernel before the one that is being written is one, and not launched early."""
    scheduler = V.graph.scheduler
    found = (before for before, node in pairwise(scheduler.nodes) if node is scheduler.current_node)
    return any(_is_whole(node) and not _is_short(node.group[1]) for node in found)


def _is_dependent() -> bool:
    """Whether the kernel that is being written is launched early."""
    kernel = V.kernel
    is_whole = isinstance(kernel, TritonKernel) and not kernel.is_combo_kernel
    return is_whole and is_supported() and _is_short(kernel.numels.values())


def _begin(kernel: Any, body: Any) -> None:
    if kernel.is_combo_kernel:
        return
    is_followed = kernel.mix_order_reduction or _a_short_one_follows()  # what adds up sums is
    waits = kernel.triton_meta["launch_pdl"]
    if waits and _follows_a_usual_one():
        overwritten = V.graph.mutated_buffers | V.graph.mutated_inputs
        inputs = V.graph.graph_inputs.keys() - overwritten
        given = {pointer for name, pointer in kernel.args.input_buffers.items() if name in inputs}
        before, after = apart(body._lines, given)
    else:
        before, after = [], body._lines
    launching, waiting = beginning(waits=False, is_followed=is_supported() and is_followed), beginning(waits=waits)
    body._lines[:] = [*launching, *before, *waiting, *after]


def apart(lines: Sequence[Any], pointers: Set[str]) -> tuple[list[Any], list[Any]]:
    """A kernel's statements that touch no other memory than these pointers lead to, and the rest."""
    texts = texts_of(lines)
    if texts is None:
        return [], list(lines)
    before, after, late = [], [], set[str]()
    for line, text in zip(lines, texts, strict=True):
        names = names_in(text)
        touched = {name for name in names if _POINTER.fullmatch(name)}
        if _ORDERED.search(text) or touched - pointers or names & late:
            late |= made_by(text)
            after.append(line)
        else:
            before.append(line)
    return before, after


def _nothing(kernel: Any, *where: Any, **what: Any) -> None:
    """In place of what waits somewhere in a kernel."""

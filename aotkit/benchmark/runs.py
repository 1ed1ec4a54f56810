"""`bench`: eager against backends and partitioners, in time and memory."""

import copy
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from aotkit.benchmark.table import BenchReport, Row
from aotkit.benchmark.timing import Step, interleave
from aotkit.capture import flatten
from aotkit.checking import copy_inputs, cotangent
from aotkit.compiled import Capture
from aotkit.compiler import compile
from aotkit.errors import AotkitError, MismatchError
from aotkit.inspection import saved_bytes
from aotkit.interfaces import Partitioner
from aotkit.registry import BackendSpec, backend_status, list_partitioners, name_of, partitioner_status
from aotkit.torch_private.dispatch import pytree

NOT_TIMED = {"print"}  # it prints the graph instead of compiling it


def bench(
    fn: Callable[..., Any],
    /,
    *args: Any,
    backends: Sequence[BackendSpec] | None = None,
    partitions: Sequence[str | Partitioner] | None = None,
    seconds: float = 10.0,
    capture: Capture = "auto",
    progress: Callable[[str], None] | None = None,
    **kwargs: Any,
) -> BenchReport:
    """Time forward and backward of `fn(*args, **kwargs)`: eager, and each backend with each partitioner.

    All variants run interleaved in this process, each checked against eager first. It works on copies of the
    arguments, and of `fn` if that is a module; what a plain function changes outside of those stays changed.

    Args:
        backends: names or objects; None: all that are registered, except `print`.
        partitions: names or partitioners; None: all that are registered.
        seconds: how long to measure altogether, after compiling and warming up; at least seven rounds are played.
        capture: as for `compile`.
        progress: called with a line of text before each thing that takes long.
    """
    tell = progress or (lambda text: None)
    workload = _Workload(fn, args, kwargs)
    name = getattr(fn, "__qualname__", type(fn).__name__)
    rows = [Row("eager", "", saved_bytes=workload.saved_in_eager())]
    steps = {0: workload.step(workload.fn)}
    pairs = _pairs(backends, partitions)
    for i, (backend, partition, reason) in enumerate(pairs, 1):
        row = Row(name_of(backend), name_of(partition) if partition else "")
        rows.append(row)
        if reason is not None:
            row.status, row.check = "unavailable", reason
            continue
        tell(f"{name}: compiling {row.label} ({i} of {len(pairs)})")
        call = workload.compiled(row, backend, partition, capture)
        if call is not None:
            steps[i] = workload.step(call)
    tell(f"{name}: timing {len(steps)} variants for about {seconds:.0f} s")
    times, failed = interleave(steps, seconds, cuda=workload.cuda)
    workload.restore()
    if 0 in failed:
        raise failed[0]
    for i, row in enumerate(rows):
        row.phases = times.get(i, {})
        if i in failed:
            row.status, row.check = "failed", _reason(failed[i])
    return BenchReport(name, _environment(workload.cuda), rows)


Pair = tuple[Any, Any, str | None]


def _pairs(backends: Sequence[Any] | None, partitions: Sequence[Any] | None) -> list[Pair]:
    """(backend, partitioner, why it cannot run here); one for a backend or partitioner that can run with none."""
    pairs: list[Pair] = []
    status = partitioner_status() if partitions is None else {}
    partitions = [p for p in list_partitioners() if status[p] is None] if partitions is None else partitions
    reasons = {b: reason for b, reason in backend_status().items() if b not in NOT_TIMED}
    for backend in list(reasons) if backends is None else backends:
        reason = reasons.get(backend) if isinstance(backend, str) else None
        pairs += [(backend, None, reason)] if reason else [(backend, p, None) for p in partitions]
    return pairs


class _Workload:
    """A function with inputs of its own, which its variants share."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.fn = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn
        self._arguments = flatten(args, kwargs)
        self._renew()
        versions = [t._version for t in self._inputs]
        outputs = self._call(self.fn)
        self._mutates = versions != [t._version for t in self._inputs]
        tensors = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)]
        self.cuda = any(t.is_cuda for t in [*tensors, *self._inputs])
        roots = _differentiable(outputs)
        self._cotangents = [cotangent(t, i) for i, t in enumerate(roots)]
        self._leaves = _leaves(roots)
        self._gradients = [leaf.grad for leaf in self._leaves]

    def restore(self) -> None:
        """Give tensors that the function captures their gradients back."""
        for leaf, gradient in zip(self._leaves, self._gradients, strict=True):
            leaf.grad = gradient

    def step(self, call: Callable[..., Any]) -> Step:
        backward = self._backward if self._cotangents else None
        return Step(self._prepare, lambda: self._call(call), backward)

    def compiled(self, row: Row, backend: Any, partition: Any, capture: Capture) -> Callable[..., Any] | None:
        """Compile and check one variant; fills `row`. None if that failed."""
        self._prepare()
        try:
            compiled: Any = compile(self.fn, backend=backend, partition=partition, capture=capture)
            start = time.perf_counter()
            self._call(compiled)
            row.compile_seconds = time.perf_counter() - start
            row.status = row.check = "ok"
            how = self._call(compiled.explain)
            row.way = how.way
            if how.eager is None:
                row.saved_bytes = sum(map(saved_bytes, how.all_graphs))
            else:
                row.status, row.check = "eager", f"runs eagerly: {how.eager}"
        except Exception as e:
            row.status, row.check = "failed", _reason(e)
            return None
        return compiled  # type: ignore[no-any-return]

    def saved_in_eager(self) -> int:
        """Bytes of the storages that eager's autograd graph keeps, other than inputs, parameters and outputs."""
        saved: dict[int, Tensor] = {}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.layout is torch.strided:
                saved[_storage(tensor)] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = self._call(self.fn)
        state = self.fn.state_dict().values() if isinstance(self.fn, nn.Module) else ()
        held = [*pytree.tree_leaves(outputs), *self._inputs, *self._leaves, *state]
        alive = {_storage(t) for t in held if isinstance(t, Tensor) and t.layout is torch.strided}
        return sum(t.untyped_storage().nbytes() for storage, t in saved.items() if storage not in alive)

    def _call(self, fn: Callable[..., Any]) -> Any:
        args, kwargs = self._arguments.rebuild(self._inputs)
        return fn(*args, **kwargs)

    def _backward(self, outputs: Any) -> None:
        torch.autograd.backward(_differentiable(outputs), self._cotangents)

    def _prepare(self) -> None:
        if self._mutates:
            self._renew()
        for leaf in self._leaves:
            leaf.grad = None

    def _renew(self) -> None:
        _, self._inputs = copy_inputs(self._arguments.tensors)


def _differentiable(outputs: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]


def _leaves(roots: Sequence[Tensor]) -> list[Tensor]:
    """The tensors in which backward accumulates gradients."""
    leaves: dict[int, Tensor] = {}
    nodes = [t.grad_fn for t in roots if t.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if (variable := getattr(node, "variable", None)) is not None:
            leaves[id(variable)] = variable
        following = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= following
        nodes += following
    return list(leaves.values())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _reason(error: Exception) -> str:
    """One line."""
    report = getattr(error, "report", None) if isinstance(error, MismatchError) else None
    if report is not None:
        return next(f"{c.what} {c.problem}" for c in report.comparisons if c.problem)
    line = (str(error).splitlines() or [""])[0]
    return line if isinstance(error, AotkitError) else f"{type(error).__name__}: {line}"


def _environment(cuda: bool) -> dict[str, Any]:
    processor = torch.cuda.get_device_name() if cuda else f"{os.cpu_count()}-core CPU"
    threads = f"{torch.get_num_threads()} threads"
    return {"torch": f"torch {torch.__version__}", "processor": processor, "threads": threads}

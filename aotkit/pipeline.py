"""What happens to the graphs of one compilation: joint pass, cut, copies for inspection, compilers, first run."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.aot import (
    CompiledGraphs,
    boxed,
    copy_graph,
    copy_saved_mutated_inputs,
    donated_inputs,
    gradient_uses,
    outside_fake_mode,
    promise_strides,
    separate_gradients,
    sparing_retained,
    sparse_nodes,
)
from aotkit.errors import AotkitError, BudgetError, CompileError, TraceError
from aotkit.inspection import credit_backward
from aotkit.interfaces import Backend, Decompositions, GraphCompiler, Graphs, Partitioner

Boxed = Callable[[list[Any]], Sequence[Any]]
MOST_CODE_LINES = 60


class Pipeline:
    """The compilers and the partitioner of one compilation as AOTAutograd takes them; fills `graphs`."""

    def __init__(self, graphs_of: functools.partial[Graphs], backend: Backend, partition: Partitioner) -> None:
        self._new_graphs = graphs_of
        self._backend = backend
        self._partition = partition
        self._joint: GraphModule | None = None
        self._backward: GraphModule | None = None
        self._num_outputs: int | None = None
        self.gradient_uses: Sequence[frozenset[int]] = ()
        self.graphs: Graphs | None = None
        self._compiled: dict[str, tuple[Callable[[list[Any]], Sequence[Any]], GraphModule]] = {}

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments for AOTAutograd."""
        backend = self._backend
        fw = backend.fw_compiler
        return {
            "fw_compiler": functools.partial(self._forward, fw),
            "bw_compiler": functools.partial(self._compile, backend.bw_compiler or fw, "backward"),
            "inference_compiler": functools.partial(self._forward, backend.inference_compiler or fw),
            "partition_fn": self._cut,
            "decompositions": dict(_table(backend.decompositions)),
        }

    def compiled(self) -> CompiledGraphs:
        """What the compilers made of the graphs."""
        return CompiledGraphs(*self._compiled["forward"], *self._compiled.get("backward", ()))

    def _cut(self, joint: GraphModule, joint_inputs: Any, **kwargs: Any) -> tuple[GraphModule, GraphModule]:
        self.gradient_uses = gradient_uses(joint, kwargs["num_fwd_outputs"])
        self._refuse_sparse(joint)
        if self._backend.joint_pass is not None:
            with self._blame(f"joint pass of backend {self._backend_name!r}", "joint", joint):
                self._backend.joint_pass(joint, joint_inputs)
        credit_backward(joint)
        self._joint = copy_graph(joint)
        self._num_outputs = kwargs["num_fwd_outputs"]
        with self._blame(f"partitioner {self._new_graphs.keywords['partition']!r}", "joint", self._joint):
            parts = self._partition(joint, joint_inputs, **kwargs)
            forward, backward = self._two_graphs(parts)
            _same_saved_values(forward, backward, kwargs["num_fwd_outputs"], len(joint_inputs[1]))
        copy_saved_mutated_inputs(forward, kwargs["num_fwd_outputs"])
        separate_gradients(backward)
        self._backward = copy_graph(backward)
        return forward, backward

    def _refuse_sparse(self, gm: GraphModule) -> None:
        if found := sparse_nodes(gm):
            raise TraceError(
                f"{self._new_graphs.keywords['name']!r} computes sparse tensors ({', '.join(found[:3])}), whose "
                "gradients AOTAutograd loses. Compile the dense part of it."
            )

    def _two_graphs(self, parts: Any) -> tuple[GraphModule, GraphModule]:
        if not (isinstance(parts, tuple) and len(parts) == 2 and all(isinstance(p, GraphModule) for p in parts)):
            raise CompileError(f"it returned {type(parts).__name__}, not a tuple (forward, backward) of GraphModules")
        return parts

    def _forward(
        self, compiler: GraphCompiler, gm: GraphModule, example_inputs: Sequence[Tensor]
    ) -> Callable[..., Any]:
        num_outputs = self._num_outputs
        if num_outputs is None:  # no joint graph: inference
            self._refuse_sparse(gm)
            num_outputs = len(_results(gm))
        self.graphs = self._new_graphs(
            forward=copy_graph(gm), joint=self._joint, backward=self._backward, num_outputs=num_outputs
        )
        promise_strides(gm, num_outputs)
        return self._compile(compiler, "forward", gm, example_inputs)

    def _compile(
        self, compiler: GraphCompiler, role: str, gm: GraphModule, example_inputs: Sequence[Tensor]
    ) -> Callable[[list[Any]], Sequence[Any]]:
        kept = copy_graph(gm)
        donated = donated_inputs(self._backend.reuses_saved) if role == "backward" else ()
        with self._blame(f"backend {self._backend_name!r}", role, kept), outside_fake_mode():
            run = compiler(gm, example_inputs)
            if not callable(run):
                raise CompileError(f"it returned {type(run).__name__}, not a callable")
        run = sparing_retained(_boxed(run), donated)
        blame = functools.partial(self._blame, f"backend {self._backend_name!r}", role, kept)
        # The guard of a call has compared the inputs of a forward graph with those it was compiled for.
        later = getattr(run, "unchecked", run) if role == "forward" else run
        self._compiled[role] = _checked_once(run, later, kept, blame), kept
        return _checked_once(run, run, kept, blame)

    @property
    def _backend_name(self) -> str:
        return str(self._new_graphs.keywords["backend"])

    def _blame(self, culprit: str, role: str, gm: GraphModule) -> "_Blame":
        return _Blame(f"{culprit} failed on the {role} graph of {self._new_graphs.keywords['name']!r}", gm)


class _Blame:
    """Turns whatever a plug-in raises into a CompileError that shows the graph, but for what needs no graph."""

    def __init__(self, what: str, gm: GraphModule) -> None:
        self._what = what
        self._gm = gm

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if not isinstance(error, Exception) or (isinstance(error, AotkitError) and not isinstance(error, CompileError)):
            return
        if isinstance(error, BudgetError) or (isinstance(error, CompileError) and hasattr(error, "graph")):
            return
        detail = str(error) if isinstance(error, CompileError) else f"{type(error).__name__}: {error}"
        wrapped = CompileError(f"{self._what}: {detail}\n{_code(self._gm)}")
        wrapped.graph = self._gm  # type: ignore[attr-defined]
        raise wrapped from error


def _code(gm: GraphModule) -> str:
    lines = gm.print_readable(print_output=False).splitlines()
    if len(lines) > MOST_CODE_LINES:
        lines = [*lines[:MOST_CODE_LINES], f"... {len(lines) - MOST_CODE_LINES} more lines: see the error's .graph"]
    return "\n".join(lines)


def _table(decompositions: Any) -> Decompositions:
    return decompositions() if callable(decompositions) else decompositions  # type: ignore[no-any-return]


def _boxed(run: Callable[..., Any]) -> Callable[[list[Any]], Sequence[Any]]:
    if getattr(run, "_boxed_call", False):
        return run
    if isinstance(run, GraphModule):
        return boxed(run)

    def call(args: list[Any]) -> Sequence[Any]:
        values = tuple(args)
        args.clear()
        return run(*values)  # type: ignore[no-any-return]

    return call


def _same_saved_values(forward: GraphModule, backward: GraphModule, num_fwd_outputs: int, tangents: int) -> None:
    saved = len(_results(forward)) - num_fwd_outputs
    # torch adds inputs for the states of CUDA generators after partitioning, and for the order of effects before.
    added = ("bwd_rng_state", "tangents_token")
    inputs = [n for n in backward.graph.find_nodes(op="placeholder") if not n.name.startswith(added)]
    if len(inputs) != saved + tangents:
        raise CompileError(
            f"its forward graph saves {saved} values and there are {tangents} tangents, but its backward graph takes "
            f"{len(inputs)} inputs"
        )


def _results(gm: GraphModule) -> Sequence[Any]:
    (output,) = gm.graph.find_nodes(op="output")
    return output.args[0]  # type: ignore[no-any-return]


def _checked_once(run: Boxed, later: Boxed, gm: GraphModule, blame: Callable[[], "_Blame"]) -> Boxed:
    """Compare the number, shapes, dtypes and devices of the first run's outputs with what the graph promises.

    Args:
        later: what runs from the second time on.
    """
    promised: list[Any] | None = [n.meta.get("val") if isinstance(n, torch.fx.Node) else n for n in _results(gm)]

    def call(args: list[Any]) -> Sequence[Any]:
        nonlocal promised
        if (expected := promised) is None:  # another thread may set it meanwhile
            return later(args)
        with blame():
            results = run(args)
            _compare(results, expected)
        promised = None
        return results

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _compare(results: Any, promised: Sequence[Any]) -> None:
    if not isinstance(results, list | tuple):
        raise CompileError(f"its compiled function returned {type(results).__name__}, not a list or tuple of outputs")
    if len(results) != len(promised):
        raise CompileError(f"its compiled function returned {len(results)} outputs; the graph has {len(promised)}")
    for i, (got, want) in enumerate(zip(results, promised, strict=True)):
        if _kind(got) != _kind(want) or (isinstance(want, Tensor) and _differ(got.shape, want.shape)):
            raise CompileError(
                f"its compiled function returned {_show(got)} as output {i}; the graph has {_show(want)}"
            )


def _kind(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value is None
    # Fused attention on CUDA returns its random seeds on the CPU, whatever torch's description of it says.
    return value.dtype, value.device if value.dim() else None


def _differ(got: Sequence[Any], want: Sequence[Any]) -> bool:
    return len(got) != len(want) or any(isinstance(w, int) and g != w for g, w in zip(got, want, strict=True))


def _show(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"a tensor of {value.dtype}, shape {list(value.shape)}, on {value.device}"

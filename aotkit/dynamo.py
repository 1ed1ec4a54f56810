"""Capture by TorchDynamo: `capture="dynamo"`, and aotkit's backends under `torch.compile`."""

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from aotkit import aot, checker
from aotkit.copies import run_on_copies
from aotkit.errors import AotkitError, TraceError, warn_of_fallback
from aotkit.interfaces import Graphs

# Filled while `DynamoFunction.graphs` runs: the graphs of every captured piece that the call ran.
_visited: contextvars.ContextVar[list[Graphs] | None] = contextvars.ContextVar("visited", default=None)


class DynamoFunction:
    """A function that Dynamo captures, in one piece or several, each compiled by one recipe."""

    def __init__(self, recipe: Any, check: bool, on_error: str) -> None:
        self._name = recipe.name
        self._call = aot.dynamo_compile(recipe.fn, CapturedCompiler(recipe, check, on_error), recipe.dynamic)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def graphs(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Graphs:
        """Call it once more and tell which graphs that ran. Random state is put back; mutations remain."""
        token = _visited.set([])
        try:
            with aot.random_state():
                self._call(*args, **kwargs)
            visited = _visited.get() or []
        finally:
            _visited.reset(token)
        if len(visited) != 1:
            raise TraceError(
                f"Dynamo split {self._name!r} into {len(visited)} graphs for these inputs, so it has no single set of "
                "graphs. Register aotkit.torch_backend with torch.compile(fullgraph=True) to see where it breaks."
            )
        return visited[0]


class CapturedCompiler:
    """A `torch.compile` backend: compiles one captured graph by a recipe, and checks it on its first run."""

    def __init__(self, recipe: Any, check: bool, on_error: str = "raise") -> None:
        self._recipe = recipe
        self._check = check
        self._on_error = on_error
        self.__name__ = f"aotkit_{recipe.backend_name}_{recipe.partition_name}"

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        try:
            return self._compile(gm, example_inputs)
        except AotkitError as e:
            self._fall_back(e)
            return aot.uncompiled_graph(gm).forward

    def _fall_back(self, error: AotkitError) -> None:
        """Warn that the graph runs eagerly, if that is what the user wants."""
        if self._on_error == "raise":
            raise error
        warn_of_fallback(self._recipe.name, error)

    def _compile(self, gm: GraphModule, example_inputs: Sequence[Any]) -> "_CapturedGraph":
        pipeline = self._recipe.pipeline()
        with aot.COMPILE_LOCK:
            compiled = aot.compile_captured(aot.copy_graph(gm), example_inputs, **pipeline.keywords())
        assert pipeline.graphs is not None
        graphs = pipeline.graphs
        graphs.input_names = tuple(aot.captured_names(gm))
        unused = aot.unused_gradients(pipeline.gradient_uses, compiled)

        def run(*inputs: Any) -> Sequence[Any]:
            before = aot.nodes_of(inputs)
            results = compiled.call(*inputs)
            if graphs.backward is not None:
                mutated = [inputs[i] for i in compiled.mutated]
                aot.watch_backward([*results, *mutated], before, self._recipe.name, unused)
            return results

        return _CapturedGraph(run, gm, graphs, self._recipe.subject if self._check else None, self._fall_back)


class _CapturedGraph:
    """Runs one compiled piece; compares it with its own eager run the first time."""

    def __init__(
        self,
        run: Callable[..., Sequence[Any]],
        gm: GraphModule,
        graphs: Graphs,
        subject: str | None,
        fall_back: Callable[[AotkitError], None],
    ) -> None:
        self._run = run
        self._gm = aot.uncompiled_graph(gm)
        self._graphs = graphs
        self._subject = subject
        self._fall_back = fall_back

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        if (visited := _visited.get()) is not None:
            visited.append(self._graphs)
        if self._subject is not None:
            try:
                self._compare(inputs)
            except AotkitError as e:
                self._fall_back(e)
                self._run = self._gm
            self._subject = None
        return self._run(*inputs)

    def _compare(self, inputs: Sequence[Any]) -> None:
        where = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
        tensors = [inputs[i] for i in where]
        names = [self._graphs.input_names[i] for i in where]

        def filled(fn: Callable[..., Any]) -> Callable[[list[Tensor]], Any]:
            def call(copies: list[Tensor]) -> Any:
                values = list(inputs)
                for i, copied in zip(where, copies, strict=True):
                    values[i] = copied
                return list(fn(*values))

            return call

        eager, compiled = filled(self._gm), filled(self._run)
        want = run_on_copies(eager, tensors)
        checker.raise_if_different(checker.check(self._subject or "", names, compiled, eager, tensors, want))

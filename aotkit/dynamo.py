"""Capture by TorchDynamo: `capture="dynamo"`, and aotkit's backends under `torch.compile`."""

import contextvars
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.fx import GraphModule, Interpreter

from aotkit import aot, checker
from aotkit.budget import Budget
from aotkit.calls import Product
from aotkit.comparison import CheckReport
from aotkit.copies import Run, at_once, run_on_copies
from aotkit.errors import AotkitError, TraceError, warn_of_fallback
from aotkit.interfaces import Graphs
from aotkit.pipeline import Pipeline
from aotkit.recipe import Recipe

if TYPE_CHECKING:
    from aotkit.launched import Kernels

# Filled while a `DynamoFunction` is asked about a call: every captured piece that the call ran.
_visited: contextvars.ContextVar["list[_CapturedGraph] | None"] = contextvars.ContextVar("visited", default=None)


class DynamoFunction:
    """A function that Dynamo captures, in one piece or several, each compiled by one recipe."""

    def __init__(self, recipe: Any, check: bool, on_error: str) -> None:
        self._name = recipe.name
        self._fn = recipe.fn
        self._on_error = on_error
        self._compiler = CapturedCompiler(recipe, check, on_error)
        self._call = aot.dynamo_compile(recipe.fn, self._compiler, recipe.dynamic)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._on_error == "raise":
            return self._call(*args, **kwargs)
        token = _visited.set([])
        try:
            return self._call(*args, **kwargs)
        except TraceError as e:
            if _visited.get():  # a part of it ran; to run that again would repeat what it changes
                raise
            self._compiler.fall_back(e)
        finally:
            _visited.reset(token)
        return self._fn(*args, **kwargs)

    def graphs(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Graphs:
        """Call it once more and tell which graphs that ran. Random state is put back; mutations remain.

        Raises:
            TraceError: there are none, or several.
        """
        graphs = self._piece(args, kwargs).graphs
        assert graphs is not None  # else it has an error
        return graphs

    def kernels(self, args: Sequence[Any], kwargs: dict[str, Any]) -> "Kernels":
        """Call it once more and tell what its graphs launch, timed on made-up inputs.

        Raises:
            TraceError: there are none, or several.
        """
        from aotkit.launched import kernels_of

        piece = self._piece(args, kwargs)
        assert piece.graphs is not None  # else it has an error
        return kernels_of(piece.graphs, piece.products, ())

    def _piece(self, args: Sequence[Any], kwargs: dict[str, Any]) -> "_CapturedGraph":
        pieces = self._pieces(args, kwargs)
        if len(pieces) != 1:
            raise TraceError(
                f"Dynamo split {self._name!r} into {len(pieces)} graphs for these inputs, so it has no single set of "
                "graphs. Register aotkit.torch_backend with torch.compile(fullgraph=True) to see where it breaks."
            )
        return pieces[0]

    def report(self, args: Sequence[Any], kwargs: dict[str, Any]) -> CheckReport:
        """Call it once more and merge the verdicts on the graphs that ran, as each had it on its first run.

        Raises:
            TraceError: no compiled graph ran.
        """
        pieces = self._pieces(args, kwargs)
        reports = [piece.report for piece in pieces if piece.report is not None]
        if len(reports) == 1:
            return reports[0]
        if not reports:
            raise TraceError(f"Dynamo found nothing to compile in {self._name!r} for these inputs.")
        merged = CheckReport(reports[0].subject)
        for i, report in enumerate(reports):
            merged.comparisons += [replace(c, what=f"graph {i}: {c.what}") for c in report.comparisons]
        return merged

    def _pieces(self, args: Sequence[Any], kwargs: dict[str, Any]) -> "list[_CapturedGraph]":
        token = _visited.set([])
        try:
            with aot.random_state():
                self._call(*args, **kwargs)
            pieces = _visited.get() or []
        finally:
            _visited.reset(token)
        for piece in pieces:
            if piece.error is not None:
                raise piece.error
        return pieces


class CapturedCompiler:
    """A `torch.compile` backend: compiles one captured graph by a recipe, and checks it on its first run."""

    def __init__(self, recipe: Any, check: bool, on_error: str = "raise") -> None:
        self._recipe = recipe
        self._check = check
        self._on_error = on_error
        self._warned = False
        self.__name__ = f"aotkit_{recipe.backend_name}_{recipe.partition_name}"

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        piece = _CapturedGraph(gm, self.fall_back)
        try:
            pipeline, run = self._compile(gm, example_inputs)
        except AotkitError as e:
            piece.fail(e)
        else:
            piece.graphs, piece.products, piece.run = pipeline.graphs, pipeline.products, run
            piece.recipe = self._recipe if self._check else None
        return piece

    def fall_back(self, error: AotkitError) -> None:
        """Warn, the first time, that something runs eagerly, if that is what the user wants; else raise."""
        if self._on_error == "raise":
            raise error
        if not self._warned:
            self._warned = True
            warn_of_fallback(self._recipe.name, error)

    def _compile(self, gm: GraphModule, example_inputs: Sequence[Any]) -> tuple[Pipeline, Callable[..., Sequence[Any]]]:
        pipeline = self._recipe.pipeline()
        with aot.COMPILE_LOCK:
            compiled = aot.compile_captured(aot.copy_graph(gm), example_inputs, **pipeline.keywords())
        assert pipeline.graphs is not None
        graphs = pipeline.graphs
        graphs.input_names = tuple(aot.captured_names(gm))
        unused = aot.unused_gradients(pipeline.gradient_uses, compiled)

        def run(*inputs: Any) -> Sequence[Any]:
            has_backward = graphs.backward is not None
            return aot.run_watched(compiled, inputs, self._recipe.name, unused, has_backward=has_backward)

        return pipeline, run


class _CapturedGraph:
    """One piece of a function: runs it compiled, or eagerly after a failure.

    Attributes:
        graphs: what was compiled.
        products: what the compilers made of them.
        run: what runs.
        recipe: how it was compiled, as long as its first run is to be compared with eager's.
        report: the verdict of that.
        error: why it runs eagerly.
    """

    def __init__(self, gm: GraphModule, fall_back: Callable[[AotkitError], None]) -> None:
        self._gm = aot.uncompiled_graph(gm)
        self._fall_back = fall_back
        self.graphs: Graphs | None = None
        self.products: Mapping[str, Product] = {}
        self.run: Callable[..., Sequence[Any]] = self._gm
        self.recipe: Recipe | None = None
        self.report: CheckReport | None = None
        self.error: AotkitError | None = None

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        if (visited := _visited.get()) is not None:
            visited.append(self)
        if self.recipe is not None and self.graphs is not None:
            try:
                self.report = self._compare(inputs, self.recipe, self.graphs.input_names)
                checker.raise_if_different(self.report)
            except AotkitError as e:
                self.fail(e)
            self.recipe = None
        return self.run(*inputs)

    def fail(self, error: AotkitError) -> None:
        """Run eagerly from now on; raises the error if the user does not want that."""
        self._fall_back(error)
        self.error, self.run = error, self._gm

    def _compare(self, inputs: Sequence[Any], recipe: Recipe, input_names: Sequence[str]) -> CheckReport:
        where = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
        tensors = [inputs[i] for i in where]
        names = [input_names[i] for i in where]

        def filled(fn: Callable[..., Any]) -> Run:
            def call(copies: list[Tensor]) -> Any:
                values = list(inputs)
                for i, copied in zip(where, copies, strict=True):
                    values[i] = copied
                return list(fn(*values))

            return at_once(call)

        eager, compiled = filled(self._gm), filled(self.run)
        want = run_on_copies(eager, tensors)
        # Another thread could want TorchDynamo, which waits for this compilation.
        check = functools.partial(checker.check, threads=False)
        report = check(recipe.subject, names, compiled, eager, tensors, want)
        if not report.passed:
            from aotkit import culprit

            def attempt(other: Recipe, limit: Budget) -> CheckReport:
                traced = _trace_again(filled(Interpreter(self._gm).run), tensors, other)
                return check(other.subject, names, traced, eager, tensors, run_on_copies(eager, tensors), limit=limit)

            report.search = functools.partial(culprit.find, replace(recipe, dynamic=False), attempt)
            report.find_culprit(culprit.SECONDS)
        return report


def _trace_again(run: Run, tensors: Sequence[Tensor], recipe: Recipe) -> Run:
    """Compile a captured graph once more when Dynamo is done, for these very inputs."""

    def flat(*fakes: Tensor) -> Any:
        with run(list(fakes)) as outputs:
            return outputs

    static = [True] * len(tensors)
    with aot.COMPILE_LOCK, aot.random_state():
        compilers = recipe.pipeline().keywords()
        compiled = aot.trace(flat, tensors, static, dynamic=False, **compilers)
    return at_once(lambda copies: list(compiled.call(*copies)))

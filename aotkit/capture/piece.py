"""One graph that TorchDynamo captured: compiled by a recipe, and compared with eager on its first run."""

import functools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter

from aotkit.capture.auto import Unsuited
from aotkit.capture.call_record import Ran, ran
from aotkit.capture.captured_graph import (
    assigned_data,
    captured_names,
    fixed_scalars,
    graph_break_of,
    graph_to_trace,
    strides_of_captured,
    uncompiled_graph,
    what_is_checked,
    what_is_compiled,
)
from aotkit.capture.eager_saved import saved_in_eager
from aotkit.capture.kept_graphs import Made, graphs_made, keep_graphs, kept_graphs
from aotkit.capture.later import Later
from aotkit.capture.recipe import Recipe
from aotkit.capture.refusals import EagerOnly
from aotkit.capture.storages import Storages
from aotkit.capture.together import settle_graphs
from aotkit.checking import (
    Baseline,
    Budget,
    CheckReport,
    Plan,
    Run,
    at_once,
    checked_before,
    checker,
    run_on_copies,
)
from aotkit.errors import AotkitError, TraceError
from aotkit.inspection import Graphs
from aotkit.passes import HasNoGraph
from aotkit.random import SeedNeeded, new_seed, random_state
from aotkit.runtime import (
    COMPILE_LOCK,
    HIDDEN_OVERLAP,
    Apart,
    WayIn,
    collecting_later,
    hidden_overlap,
    mutation_pattern,
    way_in,
)
from aotkit.stages import Pipeline, Product
from aotkit.timeline import current, stage
from aotkit.torch_private import native
from aotkit.torch_private.aotautograd import compile_captured, trace, traced_code
from aotkit.torch_private.aotautograd_metadata import Compiled
from aotkit.torch_private.dynamo import is_dynamos_own


class CapturedGraph:
    """One piece of a function: runs it compiled, or eagerly after a failure.

    Args:
        attributes: tensors that its last inputs always are.

    Attributes:
        made, way_in: what was compiled, now or before, and how a call comes to that; None before.
        seeded: whether a seed follows the inputs.
        is_unsettled: whether other ranks have not agreed to it yet.
        is_unchecked: whether its next run is to be compared with eager's.
        report: the verdict of that.
        timeline: where the time of the call went that it was compiled in.
        error: why it runs eagerly.
        later: it runs uncompiled as yet, and this is what to compile.
        traced: the code that Dynamo has run through for it.
        ends_because: why Dynamo ended the graph where it did; None where the function ends.
    """

    def __init__(
        self, gm: GraphModule, attributes: Sequence[Tensor], recipe: Recipe, fall_back: Callable[[AotkitError], None]
    ) -> None:
        self._gm = uncompiled_graph(gm)
        # The inputs to which it gives other storages, as the function does, and their strides, unless these are open.
        self._assigned: Mapping[int, tuple[int, ...] | None] = {}
        self._attributes = attributes
        self._fixed = fixed_scalars(gm)  # which the check leaves as they are
        self._recipe = recipe
        self._fall_back = fall_back
        self._run: Callable[..., Sequence[Any]] = self._gm
        self.seeded = False
        self._eager: str | None = None  # why it runs uncompiled for good, though nothing failed
        self.made: Made | None = None
        self.way_in: WayIn | None = None
        self._input_names: Sequence[str] = ()
        self._mutated: Sequence[int] = ()
        self._shared: Hashable = None  # how mutated inputs share memory; known from the first run
        self._are_apart = Apart()
        self._seconds = 0.0  # that compiling took: what takes long as a whole does so in parts
        self.ends_because = graph_break_of(gm)
        self.is_unchecked = self.is_unsettled = False
        self.report: CheckReport | None = None
        self.timeline = current()
        self.error: AotkitError | None = None
        self.later: Later | None = None
        self.traced = traced_code()
        self._parts: Sequence[str] | None = None
        self._verdict: Sequence[str] | None = None  # the name under which it is kept

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        inputs = (*inputs, *self._attributes)
        again, call = False, ran.get()
        if call is not None:
            call.pieces.append(self)
            again = call.again
        elif not self.is_unchecked:  # under torch.compile, once it has been checked
            native.begin_build()
        if self.later is not None and not self._is_compiled(self.later, call):
            return self._gm(*inputs)  # type: ignore[no-any-return]
        if self.error is not None:
            self._fall_back(self.error)
        if (reason := self._eager or (self._why_other_inputs(inputs) if self._mutated else None)) is not None:
            return self._run_eagerly(reason, inputs)
        if (self.is_unchecked or again) and self.made is not None and self.error is None:
            try:
                with call.recorded(self._recipe.subject) if call and self.is_unchecked else nullcontext():
                    self.report = self._report(inputs, self._input_names, again)
                checker.raise_if_different(self.report)
                self.is_unchecked = False
            except AotkitError as e:
                self.fail(e)
            except EagerOnly as e:
                self._eager, self.is_unchecked = str(e), False
                return self._run_eagerly(self._eager, inputs)
        if self.is_unsettled:
            self.is_unsettled = False
            settle_graphs(lambda: self.graphs)
        results = self._run(*inputs)
        if call is not None and call.values is not None:
            call.values.append((inputs, results))
        return results

    @property
    def graphs(self) -> Graphs | None:
        """What was compiled."""
        return graphs_made(self.made, self._input_names, self._recipe.why_backend)

    @property
    def kept_as(self) -> dict[str, Any] | None:
        """Where another process finds what was compiled, and the verdict; None if it does not."""
        recipe = self._recipe
        if self._parts is None or self._attributes or self.why_eager is not None or self.is_unchecked:
            return None
        named = {"backend": recipe.backend_name, "why": recipe.why_backend, "names": self._input_names}
        return {**named, "parts": self._parts, "verdict": self._verdict}

    @property
    def why_eager(self) -> str | None:
        """Why it runs uncompiled, if it does."""
        waits = None if self.later is None else "it is not compiled yet"
        return str(self.error) if self.error is not None else self._eager or waits

    def saved_in_eager(self) -> int | None:
        """As for `saved_in_eager` of its graph."""
        return saved_in_eager(self._gm)

    @property
    def products(self) -> Mapping[str, Product]:
        """What the compilers made of them."""
        return {} if self.made is None else self.made.products

    def _is_compiled(self, later: Later, call: Ran | None) -> bool:
        """Whether it need not run uncompiled any more; compiles it if it is time for that."""
        if not later.is_due(wait=call is not None and call.waits):
            return False
        with (call or Ran()).recorded(self._recipe.subject), COMPILE_LOCK:
            if self.later is later:  # else another thread has done so meanwhile
                self.later, self.timeline, self._shared = None, current(), ()
                self._eager = later.compile(self)
        return True

    def _report(self, inputs: Sequence[Any], input_names: Sequence[str], again: bool) -> CheckReport:
        subject, compare = self._recipe.subject, functools.partial(self._compare, inputs, input_names)
        with stage("look for a verdict"):
            parts = None if again else what_is_checked(self._gm, self.made, self._recipe, inputs)
        self._verdict = parts
        return checked_before(subject, parts, lambda: checker.memory_permitting(subject, compare))

    def _run_eagerly(self, reason: str, inputs: Sequence[Any]) -> Sequence[Any]:
        if (call := ran.get()) is not None:
            call.eager.append(reason)
        return self._gm(*inputs)  # type: ignore[no-any-return]

    def _why_other_inputs(self, inputs: Sequence[Any]) -> str | None:
        """Why the graph would be wrong for these inputs, if it would, though Dynamo's guards accept them."""
        # In torch 2.11, the guards of an input expect the strides that the function leaves it with.
        if any(inputs[i].stride() != strides for i, strides in self._assigned.items() if strides is not None):
            return "it has assigned data with other strides than when TorchDynamo captured it"
        apart = self._are_apart(inputs)
        shared = () if apart else mutation_pattern(inputs, self._mutated)
        self._shared = shared if self._shared is None else self._shared
        if shared != self._shared:
            return "it mutates inputs that share memory in another way than when TorchDynamo captured it"
        return HIDDEN_OVERLAP if not apart and hidden_overlap(inputs) else None

    def fail(self, error: AotkitError) -> None:
        """Run eagerly from now on; raises the error, now and in later calls, if the user does not want that."""
        if isinstance(error, HasNoGraph):
            self._eager = str(error)
            return
        self.error, self._run = error, self._gm
        self._fall_back(error)

    def compile(self, gm: GraphModule, example_inputs: Sequence[Any], names: Sequence[str] | None = None) -> None:
        """Compile it, with a seed as one more input if it draws shared random numbers.

        Args:
            names: what the user calls its inputs, if the graph does not know.
        """
        start = time.monotonic()
        strides = {i: example_inputs[i].stride() for i in assigned_data(gm)}
        self._assigned = {i: s if all(type(n) is int for n in s) else None for i, s in strides.items()}
        self._parts = parts = None if self._assigned else what_is_compiled(gm, example_inputs, self._recipe)
        kept = kept_graphs(parts, self._recipe.backend, self._recipe.name, guarded=False)
        if kept is not None:
            self.made, self.way_in, self.seeded = kept, kept.way_in, kept.more["seeded"]
            self._mutated, self._shared = kept.more["mutated"], ()
        else:
            try:
                self._compile_anew(gm, example_inputs, parts)
            except Unsuited as e:
                self._recipe = e.otherwise.in_recipe(self._recipe)
                return self.compile(gm, example_inputs, names)
        assert self.way_in is not None
        self._run = self._calling(self.way_in)
        self._input_names = (*(names or captured_names(gm)), "seed")[: len(example_inputs) + self.seeded]
        self._seconds = time.monotonic() - start
        self.is_unsettled = True

    def _compile_anew(self, gm: GraphModule, example_inputs: Sequence[Any], parts: Sequence[str] | None) -> None:
        try:
            pipeline, compiled = self._compiled(gm, example_inputs)
        except SeedNeeded:
            self.seeded = True
            pipeline, compiled = self._compiled(gm, example_inputs)
        self.made = pipeline
        count = len(example_inputs) + self.seeded
        with stage("make the way in"):
            self.way_in = way_in(compiled, pipeline.compiled(), pipeline.gradient_uses, count, self._recipe.name)
        self._mutated = compiled.mutated
        if not mutation_pattern(example_inputs, compiled.mutated):
            more = {"seeded": self.seeded, "mutated": [*compiled.mutated]}
            keep_graphs(parts, pipeline, self.way_in.plain, more)

    def _compiled(self, gm: GraphModule, example_inputs: Sequence[Any]) -> tuple[Pipeline, Compiled]:
        pipeline = self._recipe.pipeline()
        pipeline.strides = strides_of_captured(gm)
        pipeline.assigns_data = bool(self._assigned)
        pipeline.lasting = [*(isinstance(x, nn.Parameter) for x in example_inputs), True]  # the last is the seed
        inputs = list(example_inputs)
        gm = graph_to_trace(gm, shared=self._recipe.random == "shared", seeded=self.seeded)
        with stage("trace, cut and compile"), COMPILE_LOCK, random_state(), self._explained(), collecting_later():
            inputs += self._seed()
            return pipeline, compile_captured(gm, inputs, **pipeline.keywords())

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the ways in which tracing fails into an error that says what to do."""
        try:
            yield
        except (AotkitError, SeedNeeded, Unsuited):
            raise
        except Exception as e:
            if is_dynamos_own(e):  # as by which it starts again
                raise
            raise TraceError(
                f"a graph that TorchDynamo captured of {self._recipe.name!r} cannot be traced: {type(e).__name__}: "
                f"{e}. Keep it out by torch.compiler.disable, or use on_error='eager' to run it uncompiled."
            ) from e

    def _calling(self, way: WayIn) -> Callable[..., Sequence[Any]]:
        def run(*inputs: Any) -> Sequence[Any]:
            return way.call([*inputs, *self._seed()])

        return run

    def _seed(self) -> list[Tensor]:
        """The input that follows the captured ones: the seed of a call, where it needs one."""
        return [new_seed()] if self.seeded else []

    def _randomness(self, *seed: Tensor) -> AbstractContextManager[Any]:
        """What eager code runs under to draw the compiled graph's numbers, from a new seed if none is given."""
        return self._recipe.randomness(*seed or self._seed() or (None,))

    def _compare(self, inputs: Sequence[Any], input_names: Sequence[str]) -> CheckReport:
        recipe = self._recipe
        where = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and i not in self._fixed]
        tensors = [inputs[i] for i in where]
        names = [input_names[i] for i in where]
        plan = Plan(randomness=self._randomness)

        def filled(fn: Callable[..., Any], names: Sequence[str] = ()) -> Run:
            def call(copies: list[Tensor]) -> Any:
                values = list(inputs)
                for i, copied in zip(where, copies, strict=True):
                    values[i] = copied
                storages = Storages(copies if names else (), names, [input_names[i] for i in self._assigned])
                results = list(fn(*values))
                storages.verify()
                return results

            return at_once(call)

        eager = filled(self._gm, names)
        with stage("run in eager"):
            baseline = Baseline(names, eager, tensors, run_on_copies(eager, tensors, plan), plan)
        # Another thread could want TorchDynamo, which waits for this compilation.
        report = checker.check(recipe.subject, filled(self._run), baseline, threads=False)
        if not report.passed and not self._assigned:  # which could not be traced again as it was
            from aotkit import culprit

            def attempt(other: Recipe, limit: Budget) -> CheckReport:
                traced = self._traced_again(filled(Interpreter(self._gm).run), tensors, other)
                want = run_on_copies(eager, tensors, plan)
                again = Baseline(names, eager, tensors, want, plan, budget=limit)
                return checker.check(other.subject, traced, again, threads=False)

            run_eager = functools.partial(run_on_copies, eager, tensors, plan)
            report.search = functools.partial(culprit.find, replace(recipe, dynamic=False), attempt, run_eager)
            report.find_culprit(culprit.SECONDS if self._seconds < culprit.SECONDS else 0)
        return report

    def _traced_again(self, run: Run, tensors: Sequence[Tensor], recipe: Recipe) -> Run:
        """Compile it once more when Dynamo is done, for these very inputs."""

        def flat(*fakes: Tensor) -> Any:
            values, seeds = list(fakes[: len(tensors)]), fakes[len(tensors) :]
            with self._randomness(*seeds), run(values) as outputs:
                return outputs

        with COMPILE_LOCK, random_state(), collecting_later():
            inputs = [*tensors, *self._seed()]
            compilers = recipe.pipeline().keywords()
            compiled = trace(flat, inputs, **compilers)
        return at_once(lambda copies: list(compiled.call(*copies, *self._seed())))

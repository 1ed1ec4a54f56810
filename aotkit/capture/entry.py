"""One compilation: trace a function for one set of inputs, check it against eager, run it."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.capture.kept_graphs import KeptGraphs, Made, graphs_made, keep_graphs, kept_graphs, surroundings, texts_of
from aotkit.capture.outputs import Outputs
from aotkit.capture.recipe import Recipe
from aotkit.capture.refusals import EagerOnly
from aotkit.capture.signature import Signature, outcome_in_eager
from aotkit.capture.tracing import traced
from aotkit.capture.watching import TensorReads
from aotkit.checking import (
    Baseline,
    Budget,
    CheckReport,
    Outcome,
    at_once,
    checked_before,
    checker,
    kept_verdict,
    resized,
    unmoved,
)
from aotkit.errors import AotkitError, MismatchError, TraceError
from aotkit.inspection import Graphs
from aotkit.keep import is_kept
from aotkit.passes import generators_of, has_torch_operators
from aotkit.random import SeedNeeded, new_seed, random_state
from aotkit.registry import get_backend, get_partitioner
from aotkit.runtime import (
    HIDDEN_OVERLAP,
    Apart,
    hidden_overlap,
    memory_pattern,
    refuse_leaf_mutation,
    way_in,
    with_seed,
)
from aotkit.stages import Product
from aotkit.timeline import current, stage
from aotkit.torch_private.aotautograd_metadata import why_eager_outputs
from aotkit.torch_private.tensors import tensor_guard


class Entry:
    """A compiled function for one signature.

    Args:
        ran_in_eager: whether the function is known not to raise.
        kept: what an earlier process compiled for it; None: it is compiled now.

    Attributes:
        recipe: what it is compiled by.
        report: the verdict of the check, if there was one.
        accepts: whether it is valid for these flat inputs; everything else has been compared.
        is_open: whether some of their sizes may be others.
        timeline: where the time of the call went that it was compiled in, if that is known.
        way_in: how a call comes to the graphs.
        made: these, compiled now or before.
        seeded: whether a seed follows the inputs.
        run_graphs: takes the flat inputs, in a list that it may empty; returns what the graphs compute.
        rebuild: makes the result of the function of that.
        seconds: how long it took to have them.
    """

    def __init__(
        self, recipe: Recipe, signature: Signature, *, ran_in_eager: bool = False, kept: KeptGraphs | None = None
    ) -> None:
        start = time.monotonic()
        self.report: CheckReport | None = None
        self.timeline = current()
        self.recipe = recipe
        self._parts = what_is_compiled(recipe, signature)
        self.made: Made
        self._layouts: Sequence[Any] = ()
        self.is_open = recipe.dynamic
        if kept is None:
            self._compile(recipe, signature, ran_in_eager)
        else:
            self._take(kept, signature)
        self._names = (*signature.names, "seed")[: len(signature.tensors) + self.seeded]
        self.seconds = time.monotonic() - start

    def _take(self, kept: KeptGraphs, signature: Signature) -> None:
        """What an earlier process compiled: of the plain case, without open sizes."""
        self.made = kept
        signature.seeded = self.seeded = kept.more["seeded"]
        is_open = [False] * len(signature.tensors)
        self.accepts = _validity(signature.tensors, is_open, kept.more["mutated"], None, kept.more["offsets"], ())
        self.way_in = kept.way_in
        self.run_graphs = with_seed(kept.way_in.call) if self.seeded else kept.way_in.call
        self.rebuild = Outputs.of(kept.more["outputs"]).rebuilder()

    def _compile(self, recipe: Recipe, signature: Signature, ran_in_eager: bool) -> None:
        outputs = Outputs()
        pipeline = recipe.pipeline()
        reads = TensorReads()
        with random_state():
            inputs = [*signature.tensors, *([new_seed()] if signature.seeded else ())]
        compiled = traced(recipe, signature, inputs, pipeline, outputs, reads, ran_in_eager)
        if (reason := why_eager_outputs(compiled.metadata)) is not None:
            raise EagerOnly(reason)
        if compiled.mutated and hidden_overlap(signature.tensors):
            raise EagerOnly(HIDDEN_OVERLAP)
        if ran_in_eager:
            _refuse_leaf_mutation(recipe, [signature.tensors[i] for i in compiled.leaf_mutated])
        assert pipeline.graphs is not None  # AOTAutograd always compiles a forward graph
        self.made = pipeline
        if foreign := generators_of(pipeline.graphs.forward, signature.generators):
            raise TraceError(
                f"{recipe.name!r} draws from {len(foreign)} random generators that it makes itself; a graph would go "
                "on with the same one. Make them outside, or draw from torch's own."
            )
        is_open = [recipe.dynamic and any(dims) for dims in signature.open_sizes]
        seed, mutated = inputs[len(is_open) :], compiled.mutated
        self.accepts = _validity(signature.tensors, is_open, mutated, compiled.guard, reads.offsets, seed)
        self._layouts = compiled.layouts
        with stage("make the way in"):
            self.way_in = way_in(compiled, pipeline.compiled(), pipeline.gradient_uses, len(inputs), recipe.name)
        self.seeded = signature.seeded
        call = _refusing(self.way_in.call, compiled.leaf_mutated) if compiled.leaf_mutated else self.way_in.call
        self.run_graphs = with_seed(call) if signature.seeded else call
        self.rebuild = outputs.rebuilder()
        if (structure := outputs.as_data()) is not None:
            more = {"seeded": self.seeded, "mutated": [*mutated], "offsets": reads.offsets, "outputs": structure}
            keep_graphs(self._parts, pipeline, self.way_in.plain, more)

    @property
    def graphs(self) -> Graphs:
        """What was compiled."""
        graphs = graphs_made(self.made, self._names, self.recipe.why_backend)
        assert graphs is not None
        return graphs

    @property
    def products(self) -> Mapping[str, Product]:
        """What the compilers made of it."""
        return self.made.products

    def _texts(self) -> Sequence[str] | None:
        """All that decides what the function and the compiled graphs compute, but for values and the machine."""
        if self._parts is None:
            return None
        texts = texts_of(self.made)
        return None if texts is None else [*self._parts, *texts]

    def was_checked(self, recipe: Recipe) -> bool:
        """Whether an earlier process has compared the same with eager; then its verdict is the report."""
        if (texts := self._texts()) is not None:
            self.report = kept_verdict(recipe.subject, texts)
        return self.report is not None

    def run(self, tensors: list[Tensor]) -> Any:
        """The result of the function; its tensors carry the compiled backward graph. May empty the list."""
        return self.rebuild(self.run_graphs(tensors))

    def launched(self, tensors: list[Tensor]) -> tuple[Graphs, Mapping[str, Product], Sequence[Tensor]]:
        """The graphs, what runs them, and their inputs in a call with these."""
        with random_state():
            return self.graphs, self.products, [*tensors, *([new_seed()] if self.seeded else ())]

    def check(self, recipe: Recipe, signature: Signature, want: Any) -> None:
        """Compare with eager's outcome on copies of the same inputs; if they differ, find out why.

        Raises:
            MismatchError: they differ.
            EagerOnly: they do, and nobody is to blame.
        """
        compare = functools.partial(self.compare, recipe, signature, want)
        permitting = functools.partial(checker.memory_permitting, recipe.subject, compare)
        self.report = checked_before(recipe.subject, self._texts(), permitting)
        if not self.report.passed and (reason := signature.why_traced_otherwise()) is not None:
            raise EagerOnly(reason, final=True)
        if not self.report.passed and not recipe.dynamic:  # else it is compiled again, with fixed sizes, to compare
            from aotkit import culprit

            def attempt(other: Recipe, limit: Budget) -> CheckReport:
                entry = Entry(other, signature, ran_in_eager=True)
                return entry.compare(other, signature, outcome_in_eager(signature), limit)

            def search(budget: Budget) -> Any:
                with unmoved(signature.generators):
                    return culprit.find(recipe, attempt, lambda: outcome_in_eager(signature), budget)

            self.report.search = search
            # What took long to compile as a whole would do so in parts.
            self.report.find_culprit(culprit.SECONDS if self.seconds < culprit.SECONDS else 0)
        checker.raise_if_different(self.report)

    def compare(self, recipe: Recipe, signature: Signature, want: Outcome, limit: Budget | None = None) -> CheckReport:
        """Compare with eager's outcome on copies of the same inputs; frees parts of that.

        Args:
            limit: time of which the check takes its own.
        """
        tensors = signature.tensors
        run_eager = functools.partial(signature.running, "run for the check")
        budget = limit or Budget(None)
        others = (resized(tensors, layouts[: len(tensors)]) for layouts in self._layouts)  # the seed stays
        other = next((o for o in others if o is not None and self.accepts(*o)), None)
        return checker.check(
            recipe.subject,
            at_once(self.run),
            Baseline(signature.names, run_eager, tensors, want, signature.plan(), budget=budget),
            resized=[] if other is None else [other],
            # Operators of the user's own, and what processes do together, need not work in two threads at a time.
            threads=all(has_torch_operators(gm) for gm in (self.graphs.forward, self.graphs.backward) if gm),
        )


def kept_entry(recipe: Recipe, signature: Signature) -> Entry | None:
    """One whose graphs an earlier process compiled, if there are such."""
    kept = kept_graphs(what_is_compiled(recipe, signature), recipe.backend, recipe.name, guarded=True)
    return None if kept is None else Entry(recipe, signature, kept=kept)


def what_is_compiled(recipe: Recipe, signature: Signature) -> Sequence[str] | None:
    """All that decides what a function is compiled to, but for the machine; None if that cannot be told."""
    if not is_kept():
        return None
    # Once: what surrounds it is another when it has run, such as whether CUDA is in use.
    if (told := next((parts for known, parts in signature.told if known is recipe), ())) != ():
        return told
    around, text = surroundings(recipe), signature.text()
    found = None if around is None or text is None else [*around, *text]
    signature.told.append((recipe, found))
    return found


def _refusing(call: Callable[[list[Tensor]], Sequence[Any]], mutated: Sequence[int]) -> Callable[..., Sequence[Any]]:
    """The same, where none of the inputs that it mutates is one that eager refuses to."""

    def refusing(tensors: list[Tensor]) -> Sequence[Any]:
        if torch.is_grad_enabled():
            refuse_leaf_mutation([tensors[i] for i in mutated])
        return call(tensors)

    return refusing


def _refuse_leaf_mutation(recipe: Recipe, mutated: Sequence[Tensor]) -> None:
    """For a function that eager lets mutate a leaf, as through a view of another type, which autograd does not see."""
    if torch.is_grad_enabled() and any(t.is_leaf and t.requires_grad for t in mutated):
        raise TraceError(
            f"{recipe.name!r} mutates an input that requires gradients without autograd's knowledge; a compiled graph "
            "would tell autograd. Do that under torch.no_grad(), or use capture='dynamo'."
        )


class Failure:
    """Takes the place of an entry whose compilation failed, so that such calls run eagerly.

    Attributes:
        error: why it failed.
        is_open: whether sizes may be others.
        accepts: whether it stands for these flat inputs.
    """

    def __init__(self, error: AotkitError, signature: Signature) -> None:
        self.error = error
        self.is_open = False
        self.accepts = tensor_guard(signature.tensors)


def new_entry(recipe: Recipe, signature: Signature, want: Outcome | None) -> Entry:
    """Compile, and compare with what eager gave, if that is known."""
    try:
        entry = Entry(recipe, signature, ran_in_eager=want is not None)
        if want is not None:
            entry.check(recipe, signature, want)
    except SeedNeeded:
        signature.seeded = True
        return new_entry(recipe, signature, None if want is None else outcome_in_eager(signature))
    except AotkitError as error:
        if not recipe.dynamic:
            raise
        # Perhaps because of the sizes that were left open. The check has freed parts of `want`.
        fixed = dataclasses.replace(recipe, dynamic=False)
        entry = new_entry(fixed, signature, None if want is None else outcome_in_eager(signature))
        if isinstance(error, MismatchError) and _is_traced_well(recipe, signature):
            report: CheckReport = error.report  # type: ignore[attr-defined]
            report.culprit = "With fixed sizes it equals eager, and with open ones under 'nop': use dynamic=False."
            checker.raise_if_different(report)
    return entry


def unchecked_entry(recipe: Recipe, signature: Signature) -> Entry:
    """Compile where there is no memory for eager on copies of the inputs."""
    entry = new_entry(recipe, signature, None)
    entry.report = checker.unmeasured(recipe.subject)
    checker.raise_if_different(entry.report)
    return entry


def _is_traced_well(recipe: Recipe, signature: Signature) -> bool:
    """Whether graphs with open sizes are right, before a backend and a partitioner have changed them."""
    plain = dataclasses.replace(recipe, backend=get_backend("nop"), partition=get_partitioner("default"))
    entry = Entry(plain, signature, ran_in_eager=True)
    return entry.compare(plain, signature, outcome_in_eager(signature)).passed


def _validity(
    tensors: Sequence[Tensor],
    is_open: Sequence[bool],
    mutated: Sequence[int],
    guard: Callable[[Sequence[Tensor]], bool] | None,
    offsets: bool,
    seed: Sequence[Tensor],
) -> Callable[..., bool]:
    """A function that tells whether a compilation for `tensors` is valid for its arguments.

    Args:
        is_open: for each tensor whether its sizes and strides may be others, within `guard`.
        mutated: those that it mutates.
        offsets: whether it matters where in its storage each begins.
        seed: what else was traced.
    """
    check = tensor_guard(tensors, is_open)
    shared = memory_pattern(tensors, offsets)
    if not shared and not mutated:
        return check if guard is None else lambda *others: check(*others) and guard((*others, *seed))
    are_apart = Apart()
    mutates = bool(mutated)

    def share_alike(*others: Tensor) -> bool:
        if not shared and not offsets and are_apart(others):
            return True
        return memory_pattern(others, offsets) == shared and not (mutates and hidden_overlap(others))

    return lambda *others: check(*others) and share_alike(*others) and (guard is None or guard((*others, *seed)))

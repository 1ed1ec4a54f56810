"""Which part of a compilation is wrong, and which node of it."""

from collections.abc import Callable
from dataclasses import replace

from torch.fx import Node

from aotkit.checking import Budget, CheckReport
from aotkit.culprit.joint import wrong_before_compilers
from aotkit.culprit.minimise import left_out, smallest
from aotkit.culprit.parts import Part, Recorder, compiler_of
from aotkit.culprit.prefixes import first_wrong_prefix
from aotkit.culprit.result import Culprit, NotFound, ensure_time
from aotkit.culprit.script import compiler_script
from aotkit.culprit.subgraphs import live_values, nodes_of, steps_of
from aotkit.culprit.trials import Trial, Trials
from aotkit.inspection import output_nodes, source_line
from aotkit.recipe import Recipe


def find(
    recipe: Recipe,
    attempt: Callable[[Recipe, Budget], CheckReport],
    run_eager: Callable[[], object],
    budget: Budget,
) -> Culprit | str:
    """The first wrong node of a compilation that failed its check; or in words why none was found.

    Compiles up to `MOST_COMPILATIONS` pieces of graphs, and the function itself a few times.

    Args:
        recipe: what failed.
        attempt: compiles the same function for the same inputs by another recipe, and checks it.
        run_eager: runs it in eager on the same inputs, as the check does.
        budget: the time for it, the check's part of each attempt as well; none begins when it is used up.
    """

    def timed(other: Recipe) -> CheckReport:
        ensure_time(budget)
        report = attempt(other, budget)
        ensure_time(budget)  # else it may have passed for want of time
        return report

    try:
        return _find(recipe, timed, run_eager, budget)
    except NotFound as e:
        reason = str(e)
    except Exception as e:  # the mismatch is what the user has to see
        reason = f"looking for it raised {type(e).__name__}: {e}"
    return f"the first wrong node was not found: {reason}"


def _find(
    recipe: Recipe, attempt: Callable[[Recipe], CheckReport], run_eager: Callable[[], object], budget: Budget
) -> Culprit:
    recorder = Recorder()
    if not attempt(replace(recipe, backend=recorder.backend(recipe.backend))).passed:
        return wrong_before_compilers(recipe, recorder.parts, attempt, run_eager, budget)
    forward = recorder.parts.get("fw_compiler") or recorder.parts["inference_compiler"]
    if (backward := recorder.parts.get("bw_compiler")) is None:
        return _in_part(recipe, forward, budget)
    only_forward = Recorder().backend(recipe.backend, keep_forward=True)
    is_forward_right = attempt(replace(recipe, backend=only_forward)).passed
    return _in_part(recipe, backward if is_forward_right else forward, budget)


def _in_part(recipe: Recipe, part: Part, budget: Budget) -> Culprit:
    trials = Trials(part, compiler_of(recipe.backend, part.compiler), budget)
    if (whole := trials.whole()) is None:
        raise NotFound(f"compiled and called on its own, the {part.name} is right")
    steps = steps_of(part.gm)
    if (found := first_wrong_prefix(trials, steps)) is None:  # all values are right, but not what is returned
        return _wrong_outputs(recipe, trials, whole)
    end, wrong = found
    kept, trial = smallest(trials, steps[:end], wrong)
    # Several operations are also wrong together where the compiler mixes up what they return.
    if len(kept) > 1 and trials.left and (none := trials.piece([], live_values(part.gm, nodes_of(kept)))) is not None:
        return _culprit(recipe, trials, part.gm.graph.output_node(), none)
    return _culprit(recipe, trials, kept[-1][0], trial)


def _wrong_outputs(recipe: Recipe, trials: Trials, whole: Trial) -> Culprit:
    gm = trials.part.gm
    outputs = output_nodes(gm)
    trial = trials.piece([], outputs)
    trial = trial or left_out(lambda fewer: trials.piece(fewer, outputs), steps_of(gm), whole)[1]
    return _culprit(recipe, trials, gm.graph.output_node(), trial)


def _culprit(recipe: Recipe, trials: Trials, node: Node, trial: Trial) -> Culprit:
    culprit = Culprit(
        part=trials.part.name,
        node=node.name,
        operator=str(node.target) if node.op == "call_function" else None,
        line=source_line(node),
        difference="; ".join(f"{c.what} {c.problem}" for c in trial.report.comparisons if c.problem),
        graph=trial.gm,
    )
    if trials.budget.is_used_up:
        return culprit
    return replace(culprit, script=compiler_script(culprit, recipe, trials.part.compiler, trial))

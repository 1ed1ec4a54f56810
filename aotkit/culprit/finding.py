"""Which part of a compilation is wrong, and which node of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torch.fx import Node

from aotkit.checking import Budget, CheckReport
from aotkit.culprit.joint import wrong_before_compilers
from aotkit.culprit.parts import Part, Recorder, compiler_of
from aotkit.culprit.pieces import steps_of
from aotkit.culprit.result import Culprit, NotFound, ensure_time
from aotkit.culprit.script import compiler_script
from aotkit.culprit.search import Attempts, Wrong, compilations, first_wrong_prefix, left_out, smallest
from aotkit.passes import output_nodes, source_line

if TYPE_CHECKING:
    from aotkit.capture import Recipe


def find(
    recipe: "Recipe",
    attempt: Callable[["Recipe", Budget], CheckReport],
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

    def timed(other: "Recipe") -> CheckReport:
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
    recipe: "Recipe", attempt: Callable[["Recipe"], CheckReport], run_eager: Callable[[], object], budget: Budget
) -> Culprit:
    recorder = Recorder()
    if not attempt(replace(recipe, backend=recorder.backend(recipe.backend))).passed:
        return wrong_before_compilers(recipe, recorder.parts, attempt, run_eager, budget)
    wrong = recorder.parts.get("fw_compiler") or recorder.parts["inference_compiler"]
    if (backward := recorder.parts.get("bw_compiler")) is not None:
        only_forward = Recorder().backend(recipe.backend, keep_forward=True)
        if attempt(replace(recipe, backend=only_forward)).passed:
            wrong = backward
    return _in_part(recipe, wrong, budget)


def _in_part(recipe: "Recipe", part: Part, budget: Budget) -> Culprit:
    attempts = compilations(part, compiler_of(recipe.backend, part.compiler), budget)
    if (whole := attempts.whole()) is None:
        raise NotFound(f"compiled and called on its own, the {part.name} is right")
    steps, output = steps_of(part.gm), part.gm.graph.output_node()
    if (found := first_wrong_prefix(attempts, steps)) is None:  # all values are right, but not what is returned
        outputs = output_nodes(part.gm)
        wrong = attempts.piece([], outputs)
        wrong = wrong or left_out(lambda fewer: attempts.piece(fewer, outputs), steps, whole)[1]
        return _culprit(recipe, attempts, output, wrong)
    kept, wrong = smallest(attempts, *found)
    # Several operations are also wrong together where the compiler mixes up what they return.
    if len(kept) > 1 and attempts.left and (none := attempts.piece([], attempts.outputs(kept))) is not None:
        return _culprit(recipe, attempts, output, none)
    return _culprit(recipe, attempts, kept[-1][0], wrong)


def _culprit(recipe: "Recipe", attempts: Attempts, node: Node, wrong: Wrong) -> Culprit:
    culprit = Culprit(
        part=attempts.part.name,
        node=node.name,
        operator=str(node.target) if node.op == "call_function" else None,
        line=source_line(node),
        difference="; ".join(f"{what} {problem}" for what, problem in wrong.problems.items()),
        graph=wrong.gm,
    )
    if attempts.budget.is_used_up:
        return culprit
    return replace(culprit, script=compiler_script(culprit, recipe, attempts.part.compiler, wrong))

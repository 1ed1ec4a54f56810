"""Whether each stage of a compilation keeps its promises, so that a broken one fails at its own door.

That is for tests, and for where the environment has `AOTKIT_VERIFY=1`. What only the values of tensors show is left to
the check; what compilers make of a graph, to their first run.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from aotkit.errors import CompileError
from aotkit.passes import effect_tokens, source_line
from aotkit.stages.calls import blaming
from aotkit.stages.facts import Facts, Kind, derived, differ, facts_of, kind_of, together, without_tokens
from aotkit.torch_private.fake_tensors import is_data_dependent
from aotkit.torch_private.fx import has_code


@dataclass(frozen=True)
class Step:
    """What went into a stage, and what came out.

    Attributes:
        graphs: a joint graph, both parts of it, or one graph on its way to a compiler.
        before, after: what that was, and is.
        given: what stands for the inputs, if that is handed over with the graph.
    """

    graphs: Sequence[GraphModule]
    before: Facts
    after: Facts
    given: Sequence[Any] | None = None


Found = Iterator[tuple[str, Node | None]]  # what is wrong, at which node


def well_formed(step: Step) -> Found:
    """Nodes come after what they read, know who reads them, have names of their own, and end with the output."""
    for gm in step.graphs:
        try:
            gm.graph.lint()
        except (RuntimeError, ValueError) as e:
            yield str(e).splitlines()[0], None
        nodes = dict.fromkeys(gm.graph.nodes)
        for node in nodes:
            if strange := [user for user in node.users if user not in nodes or node not in user.all_input_nodes]:
                yield f"{strange[0]} counts as its reader", node
        if next(reversed(nodes)).op != "output":
            yield "it does not end with the output", None


def described(step: Step) -> Found:
    """Each node notes in `meta["val"]` a value of the shape, dtype and device that its operator gives."""
    for node, noted in step.after.records.items():
        if node.op in ("placeholder", "call_function") and step.before.nodes.get(node.name) != noted:
            yield from _misdescribed(node, noted[-1])


def _misdescribed(node: Node, noted: Sequence[Kind]) -> Found:
    if "val" not in node.meta:
        # torch itself leaves it out where a partitioner keeps the state of a generator.
        if node.users and getattr(node.target, "namespace", "") != "higher_order":
            yield "there is no such note", node
        return
    try:
        kinds = derived(node)
    except Exception as e:
        if not is_data_dependent(e) and not isinstance(e, NotImplementedError):
            yield f"its operator does not take these inputs: {e}", node
        return
    for said, found in zip(noted, kinds, strict=False):
        if differ(said, found):
            yield f"it notes {said}; its operator gives {found}", node


def same_inputs(step: Step) -> Found:
    """The inputs keep their number, order, names, shapes, strides, dtypes and devices."""
    before, after = step.before.inputs, step.after.inputs
    if [*before] != [*after]:
        yield f"the inputs {', '.join(before)} are {', '.join(after) or 'none'} now", None
        return
    for name, (node, kind) in after.items():
        if differ(before[name][1], kind, strides=True):
            yield f"{name} was {before[name][1]} and is {kind}", node


def same_results(step: Step) -> Found:
    """The results keep their number, order, shapes, dtypes and devices."""
    before, after = step.before.results, step.after.results
    if len(before) != len(after):
        yield f"there were {len(before)} and are {len(after)}", None
        return
    for i, ((_, was), (node, kind)) in enumerate(zip(before, after, strict=True)):
        if differ(was, kind):
            yield f"result {i} was {was} and is {kind}", node


def same_memory(step: Step) -> Found:
    """What the caller gets stays in memory of its own, or of the same input or output."""
    results = step.after.results
    for i, (was, is_) in enumerate(zip(step.before.memory, step.after.memory, strict=True)):
        if was != is_:
            yield f"output {i} shared its memory with {was}, and shares it with {is_} now", results[i][0]


def same_effects(step: Step) -> Found:
    """No draw of random numbers, assertion, print or write to an input is lost, and no write is added."""
    before, after = step.before.effects, step.after.effects
    for effect, nodes in before.items():
        if len(after.get(effect, ())) < len(nodes):
            yield f"of {len(nodes)} times {effect!r}, {len(after.get(effect, ()))} are left", nodes[-1]
    for effect in after.keys() - before.keys():
        if effect.startswith("write"):
            yield f"{effect!r} is new", after[effect][0]


def same_collectives(step: Step) -> Found:
    """What processes do together is done as often and in the same order, forward before backward."""
    before, after = step.before.together, step.after.together
    for (was, _), (is_, node) in zip(before, after, strict=False):
        if was != is_:
            yield f"{is_} comes where {was} came", node
            return
    if len(before) != len(after):
        node = (after[len(before) :] or before[len(after) :])[0][1]
        yield f"it was done {len(before)} times, and is {len(after)} times now", node


def saved_values(step: Step) -> Found:
    """Backward takes what forward saves, integers first: as many, in this order, of these shapes, strides, dtypes."""
    saved, taken = step.after.saved, step.after.taken
    if len(saved) != len(taken):
        yield f"{len(saved)} are saved and {len(taken)} are taken", None
        return
    names = [str(node) for node, _ in saved]
    for (node, kind), (placeholder, other) in zip(saved, taken, strict=True):
        if differ(kind, other, strides=True):
            yield f"forward saves {node}, {kind}; backward takes {placeholder}, {other}", node
        if placeholder.name != str(node) and placeholder.name in names:
            yield f"backward takes {placeholder} where forward saves {node}", node


def fitting(step: Step) -> Found:
    """What is handed over with the graph stands for its inputs, in number, order, shapes, dtypes and devices."""
    inputs = [*step.after.inputs.values()]
    if step.given is None:
        return
    if len(inputs) != len(step.given):
        yield f"there are {len(step.given)} for {len(inputs)} inputs", None
        return
    for (node, kind), value in zip(inputs, step.given, strict=True):
        if differ(kind, kind_of(value)):
            yield f"for {node.name}, {kind}, there is {kind_of(value)}", node


def current_code(step: Step) -> Found:
    """The Python code of a graph's module is the graph's."""
    for gm in step.graphs:
        if has_code(gm) and gm.code != gm.graph.python_code("self").src:
            yield "it is older, as `recompile` was not called after a change", None


ALL = (well_formed, described, same_inputs, same_results, same_effects, same_collectives, same_memory)
CUT = (*ALL, saved_values, current_code)
PROMISES: Mapping[str, Sequence[Callable[[Step], Found]]] = {
    "tracing": (well_formed, described, fitting),
    # Types of results change.
    "correct_statistics": (well_formed, described, same_inputs, same_effects, same_collectives, same_memory),
    "copy_changing_inputs": ALL,
    "forbid_repeating_collectives": ALL,
    "keep_copies": ALL,
    "joint pass": ALL,
    "compute_in_chunks": ALL,
    "partitioner": CUT,
    "drop_unsaved_copies": CUT,
    "copy_saved_mutated_inputs": CUT,
    "save_viewed_inputs": CUT,
    "separate_gradients": CUT,
    "AOTAutograd": (*ALL, fitting, current_code),
    # It makes results of writes.
    "return_new_storages": (well_formed, described, same_inputs, same_collectives, current_code),
    "promise_strides": (*ALL, current_code),
    # Of copies, whose notes are those of the graph that it was given, and of the backward graph.
    "compiler": (*ALL, fitting),
}
PLUGINS = {
    "joint pass": "joint pass of backend {backend!r}",
    "partitioner": "partitioner {partition!r}",
    "compiler": "backend {backend!r}",
}


def is_wanted() -> bool:
    """Whether compilations are to be verified."""
    return os.environ.get("AOTKIT_VERIFY") == "1"


class Doors:
    """What the graphs of one compilation were after the last stage, and whether the next one keeps its promises."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names  # of the function, the backend and the partitioner
        self._facts: dict[str, Facts] = {}
        self._num_outputs = 0

    def begin(self, role: str, gm: GraphModule, given: Sequence[Any], num_outputs: int) -> None:
        """The same after tracing: the graph returns so many outputs, before gradients or saved values."""
        self._num_outputs = num_outputs
        self.after("tracing", given, **{role: gm})

    def after(self, stage: str, given: Sequence[Any] | None = None, /, **graphs: GraphModule) -> None:
        """See to it that a stage has kept its promises.

        Args:
            given: what stands for the inputs of the graph.
            graphs: `joint`, one part of it on its way to a compiler, or both parts.

        Raises:
            CompileError: it has not.
        """
        (role, gm), *_ = graphs.items()
        if stage == "AOTAutograd":
            tokens = effect_tokens(gm)
            self._facts[role] = without_tokens(self._facts[role], role, tokens)
            self._num_outputs -= tokens if role == "forward" else 0
        facts = {part: facts_of(g, 0 if part == "backward" else self._num_outputs) for part, g in graphs.items()}
        if len(graphs) > 1:
            role = "joint"
            facts[role] = together(self._facts[role], facts["forward"], facts["backward"], self._num_outputs)
        step = Step([*graphs.values()], self._facts.get(role, Facts()), facts[role], given)
        for promise in PROMISES[stage]:
            for found, node in promise(step):
                self._refuse(stage, graphs, f"{promise.__doc__} But {found}", node)
        self._facts |= facts

    def _refuse(self, stage: str, graphs: Mapping[str, GraphModule], reason: str, node: Node | None) -> None:
        who = PLUGINS.get(stage, f"stage {stage!r}").format(**self._names)
        where = f"the {' and '.join(graphs)} graph of {self._names['name']!r}"
        gm = next(iter(graphs.values()))
        if node is not None:
            gm = next((g for g in graphs.values() if g.graph is node.graph), gm)
            line = source_line(node)
            reason += f", at node {node.name}" + (f" of {line}: {line.code}" if line else "")
        whose = "Correct it" if stage in PLUGINS else "Report it to aotkit's authors"
        with blaming(f"{who} breaks a promise about {where}", gm):
            raise CompileError(f"{reason}. {whose}, or leave it to the check: unset AOTKIT_VERIFY.")

"""What loading a saved step gives: a function that runs its graphs on calls like the one it was saved for."""

import operator
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from aotkit.capture import KeptGraphs, Parameters, flatten, graphs_from
from aotkit.errors import MismatchError, UnavailableError, UnsupportedError
from aotkit.inspection import Graphs
from aotkit.keep import installed
from aotkit.random import new_seed
from aotkit.registry import get_backend
from aotkit.runtime import Apart
from aotkit.saved.call import layout_of, modules_of, owner_of, state_of
from aotkit.saved.probe import differing, probed
from aotkit.torch_private.dispatch import pytree
from aotkit.torch_private.switches import environment, why_eager
from aotkit.torch_private.tensors import dtype_named, tensor_guard

MOST_SHOWN = 100  # characters of what differs


class Step:
    """A training step that was compiled in another process. It takes calls like the one that it was saved for.

    Attributes:
        __wrapped__: the function or the method of a module in whose place it stands.
        graphs: what it runs.
    """

    def __init__(self, fn: Callable[..., Any], content: Mapping[str, Any], made: KeptGraphs) -> None:
        self.__wrapped__ = fn
        self.name = content["name"]
        self._call, self._made, self._content = content["call"], made, content
        self._parameters = Parameters(fn)
        self._owner = owner_of(fn)
        self._modules = [] if self._owner is None else [*self._owner.modules()]
        self._training = [is_training for _, _, is_training in self._call["modules"]]
        names = [name for kind, name in self._call["inputs"] if kind == "state"]
        self._state = operator.attrgetter(*names, names[0]) if names else None
        self._structure = pytree.treespec_loads(self._call["structure"])
        self._result_structure = pytree.treespec_loads(self._call["result_structure"])
        plain = made.way_in.plain
        self._writes = plain is not None and bool(plain.written)
        self._are_apart = Apart()
        self._accepts: Callable[..., bool] = lambda *_: False

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The result of such a call; its tensors carry the compiled backward graph.

        Raises:
            UnsupportedError: it is another call than the one that was saved; the message tells the difference.
        """
        tensors = self._tensors(args, kwargs)
        inputs = self._inputs(tensors)
        if not self._accepts(*inputs):
            self._refuse_other_inputs(inputs)
            self._accepts = tensor_guard(inputs)
        if self._writes and not self._are_apart(inputs):
            self._refuse("it changes inputs, and some share memory;")
        seed = [new_seed()] if self._content["seeded"] else []
        outputs = self._made.way_in.call([*inputs, *seed])
        given = {"output": outputs, "argument": tensors}
        leaves = [self._leaf(given, *place) for place in self._call["result"]]
        return pytree.tree_unflatten(leaves, self._result_structure)

    @property
    def graphs(self) -> Graphs:
        """What it runs."""
        return self._made.graphs

    def _leaf(self, given: Mapping[str, Sequence[Any]], kind: str, which: Any) -> Any:
        if kind == "constant":
            return which
        return operator.attrgetter(which)(self._owner) if kind == "state" else given[kind][which]

    def _tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        if (reason := why_eager()) is not None:
            self._refuse(f"{reason}, and")
        if str(environment()) != self._call["switches"]:
            self._refuse(f"the switches of torch are {environment()}, and were {self._call['switches']};")
        if [m.training for m in self._modules] != self._training:
            self._refuse("a module is in training mode that was not, or the other way round;")
        arguments = flatten(*self._parameters.canonical(args, kwargs))
        found = [["tensor"] if isinstance(x, Tensor) else ["constant", x] for x in arguments.leaves]
        are_alike = arguments.spec == self._structure and len(found) == len(self._call["arguments"])
        if not are_alike or not all(map(_is_same, found, self._call["arguments"])):
            self._refuse(f"its arguments are {_shown(found)}, and were {_shown(self._call['arguments'])};")
        return arguments.tensors

    def _inputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        state = iter(self._state(self._owner) if self._state is not None else ())
        return [next(state) if kind == "state" else tensors[which] for kind, which in self._call["inputs"]]

    def _refuse_other_inputs(self, inputs: Sequence[Tensor]) -> None:
        for tensor, layout, (kind, which) in zip(inputs, self._call["layouts"], self._call["inputs"], strict=True):
            if (difference := _difference(layout_of(tensor), layout)) is not None:
                what = which if kind == "state" else f"tensor {which} among its arguments"
                self._refuse(f"{what} has {difference};")

    def _refuse(self, why: str) -> None:
        raise UnsupportedError(
            f"{self.name!r} was loaded for calls like the one that it was saved for, and this is another: {why} call "
            "the uncompiled function, its `__wrapped__`, or compile it with aotkit.compile."
        )


def _is_same(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return [*map(type, found)] == [*map(type, wanted)] and [*found] == [*wanted]


def _shown(what: Any) -> str:
    text = str(what)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    for key, value in wanted.items():
        if found.get(key) != value:
            return f"{key} {found.get(key)}, and had {value}"
    return None


def loaded(fn: Callable[..., Any], content: Mapping[str, Any], files: Mapping[str, bytes]) -> Step:
    """A saved step, for this function or method.

    Args:
        content, files: from `read`.

    Raises:
        UnavailableError: it was saved by another torch, on another kind of machine, or for another module.
        MismatchError: it does not compute here what it computed there.
    """
    _refuse_others(fn, content)
    folder = tempfile.mkdtemp(prefix="aotkit-")
    paths = {name: Path(folder, name) for name in files}
    for name, path in paths.items():
        path.write_bytes(files[name])
    made = graphs_from(
        content["graphs"], paths, get_backend(content["backend"].split(", ")), content["name"], guarded=True
    )
    step = Step(fn, content, made)
    weakref.finalize(step, shutil.rmtree, folder, ignore_errors=True)
    _check(step, content, made)
    return step


def _refuse_others(fn: Callable[..., Any], content: Mapping[str, Any]) -> None:
    name = content["name"]
    for here, there in zip(installed(), content["machine"], strict=False):
        if here != there:
            raise UnavailableError(
                f"{name!r} was saved with {_shown(there)}, and this is {_shown(here)}. Compile and save it here."
            )
    if len(installed()) != len(content["machine"]):
        raise UnavailableError(f"{name!r} was saved on a machine with other GPUs, or none. Save it anew on this one.")
    owner = owner_of(fn)
    wanted = {module: kind for module, kind, _ in content["call"]["modules"]}
    found = {module: kind for module, kind, _ in modules_of(owner)}
    for module in wanted.keys() | found.keys():
        if wanted.get(module) != found.get(module):
            raise UnavailableError(
                f"{name!r} was saved for another model: module {module!r} is {found.get(module, 'not there')}, and was "
                f"{wanted.get(module, 'not there')}."
            )
    state = state_of(owner)
    for (kind, which), layout in zip(content["call"]["inputs"], content["call"]["layouts"], strict=True):
        if kind == "state" and (which not in state or (difference := _difference(layout_of(state[which]), layout))):
            what = difference if which in state else "not there"
            raise UnavailableError(f"{name!r} was saved for another model: {which!r} has {what}.")


def _check(step: Step, content: Mapping[str, Any], made: KeptGraphs) -> None:
    """Compare a step on made-up values with what it gave when it was saved."""
    call = content["call"]
    if str(environment()) != call["switches"]:
        raise UnavailableError(
            f"{step.name!r} was saved with torch's switches at {call['switches']}; they are {environment()}. Load it "
            "under the same gradient mode, autocast, default dtype and determinism."
        )
    found = probed(made.way_in.call, call["layouts"], content["integers"], content["seeded"])
    dtypes = [dtype_named(layout["dtype"]) for layout in call["layouts"]]
    if wrong := differing(found, content["probe"], dtypes):
        raise MismatchError(
            f"{step.name!r} computes other values here than where it was saved, in {len(wrong)} of {len(found)} "
            "outputs and gradients. Compile it here, and save it anew."
        )

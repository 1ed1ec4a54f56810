"""What backend "auto" stands for: a table by the devices of a graph, and by whether it is a model's."""

import importlib.util
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from torch import SymInt, Tensor, nn
from torch.fx import GraphModule

from aotkit.errors import UnavailableError, UnknownNameError
from aotkit.interfaces import Backend
from aotkit.registry import AUTO, get_backend, name_of, named_backends
from aotkit.stages import why_unsuited

# Type of device -> lists of backends that share a graph, best first.
BEST: dict[str, Sequence[Sequence[str]]] = {
    "cuda": (["fuser"], ["inductor"]),
    "cpu": (["inductor"],),
}
# Others for what learns matrices: there, it is many small kernels, and those of the fuser are launched from Python.
# A step of ViT-B with 32 images, in bfloat16 on an H200, takes 16.0 ms of the GPU and 24.7 in all with the fuser, and
# 16.6 and 17.5 with Inductor; one of BERT with two layers 6.7 and 11.5, and 6.7 and 8.2.
BEST_OF_MODELS: dict[str, Sequence[Sequence[str]]] = {"cuda": (["inductor"], ["fuser"])}
PLAIN = ["nop"]  # where nothing else runs
R = TypeVar("R")


@dataclass(frozen=True)
class Choice:
    """What was chosen for a graph, and why.

    Attributes:
        names: of backends that share the graph.
        why: in words.
        otherwise: what is chosen where the graph does not suit them, given why; None: nothing is.
    """

    names: Sequence[str]
    why: str
    otherwise: "Callable[[str], Choice] | None" = None

    @property
    def name(self) -> str:
        return name_of(self.names)

    @property
    def backend(self) -> Backend:
        """All of them as one; raises `Unsuited` for a graph that does not suit them, where something else is left."""
        backend = get_backend([*self.names])
        if self.otherwise is None:
            return backend
        return replace(backend, joint_pass=partial(_examine, self, backend.joint_pass))

    def in_recipe(self, recipe: R) -> R:
        """What is compiled, by these."""
        return replace(recipe, backend=self.backend, backend_name=self.name, why_backend=self.why)  # type: ignore[type-var]


class Unsuited(BaseException):
    """A graph does not suit what was chosen for it.

    Attributes:
        otherwise: what is chosen instead.
    """

    def __init__(self, otherwise: Choice) -> None:
        super().__init__(otherwise.why)
        self.otherwise = otherwise


def _examine(choice: Choice, then: Callable[..., None] | None, gm: GraphModule, inputs: Any) -> None:
    """Before the joint pass that comes then."""
    several = [backend for _, backend in named_backends(choice.names)]
    reason = why_unsuited(several, gm)
    other = None if reason is None or choice.otherwise is None else choice.otherwise(reason)
    if other is not None and other.names != PLAIN:
        raise Unsuited(other)
    if then is not None:
        then(gm, inputs)


def default_backend(device: str = "cpu", *, open_sizes: bool = False, model: bool = False) -> Choice:
    """What backend "auto" stands for on this machine.

    Args:
        device: the type of the device that a graph is for.
        open_sizes: whether sizes of the graph are not known.
        model: whether matrices are learned.
    """
    apart = model and device in BEST_OF_MODELS
    best = BEST_OF_MODELS[device] if apart else BEST.get(device, BEST["cpu"])
    kind = "for what learns matrices on" if apart else "on"

    def choice(names: Sequence[str], rest: Sequence[Sequence[str]], reasons: Sequence[str]) -> Choice:
        why = "; ".join([f"backend {AUTO!r} is {name_of(names)!r} {kind} {device}", *reasons])
        return Choice(names, why, (lambda reason: first(rest, [f"not {name_of(names)!r}: {reason}"])) if rest else None)

    def first(names: Sequence[Sequence[str]], reasons: Sequence[str]) -> Choice:
        for n, several in enumerate(names):
            found = [f"not {name!r}: {why}" for name in several for why in _why_not(name, device, open_sizes)]
            if not found:
                return choice(several, names[n + 1 :], reasons)
            reasons = [*reasons, *found]
        return choice(PLAIN, (), reasons)

    return first(best, ())


def choice_for(inputs: Iterable[object], *, open_sizes: bool) -> Choice:
    """The same for a graph with these inputs, parameters among them: the device of a GPU's tensor, if any, decides."""
    inputs = list(inputs)
    model = any(isinstance(x, nn.Parameter) and x.dim() > 1 for x in inputs)
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    devices = {x.device.type for x in tensors}
    sizes = [n for x in tensors for n in x.shape]
    is_open = open_sizes or any(isinstance(x, SymInt) for x in (*inputs, *sizes))
    return default_backend(min(devices - {"cpu"}, default="cpu"), open_sizes=is_open, model=model)


def cpp_compiler() -> str | None:
    """Where there is a C++ compiler, or None."""
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++", "cl"))), None)


def _why_not(name: str, device: str, open_sizes: bool) -> Iterator[str]:
    try:
        ((_, backend),) = named_backends([name])
    except UnavailableError as e:
        yield str(e).partition(": ")[2]
        return
    except UnknownNameError:
        yield "it is not installed"
        return
    if open_sizes and backend.fixed_sizes:
        yield "it compiles for fixed sizes, and some are open"
    if name == "inductor" and device == "cuda" and importlib.util.find_spec("triton") is None:
        yield "Triton is not installed: `pip install triton`"
    if cpp_compiler() is None:  # Triton has one make what launches its kernels
        yield "there is no C++ compiler"

"""Find what an earlier process captured of a call, and run that."""

import builtins
import itertools
import time
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

from torch import Tensor

from aotkit.capture.digests import digest_of_file
from aotkit.capture.frames.code_data import code_of
from aotkit.capture.frames.comparing import Scope, comparison, values_of
from aotkit.capture.frames.facts import hold
from aotkit.capture.frames.keeping import BUILTINS, frames_kept, name_of_frames
from aotkit.capture.frames.piece import KeptPiece
from aotkit.capture.frames.telling import Telling
from aotkit.capture.kept_graphs import kept_graphs
from aotkit.capture.named import spec_of
from aotkit.capture.recipe import Recipe
from aotkit.checking import checker, kept_verdict
from aotkit.registry import get_backend
from aotkit.timeline import stage
from aotkit.torch_private.autograd import has_saved_tensor_hooks
from aotkit.torch_private.distributed import is_running
from aotkit.torch_private.dynamo import captured_function
from aotkit.torch_private.switches import environment
from aotkit.torch_private.tensors import is_marked, tensor_guard

TRIES = 4
Run = Callable[[], Any]
_numbers = itertools.count()


class KeptCaptures:
    """What earlier processes have captured of a function: other graphs under other switches."""

    def __init__(self, recipe: Recipe, is_checked: bool) -> None:
        self._recipe, self._is_checked = recipe, is_checked
        self._by_environment: dict[Hashable, KeptFrames] = {}

    @property
    def is_possible(self) -> bool:
        """Whether something has been kept, or can be, of the calls that there were."""
        return any(frames.name is not None for frames in self._by_environment.values())

    @property
    def pieces(self) -> list[KeptPiece]:
        """The graphs of calls that have been made."""
        return [piece for frames in self._by_environment.values() for piece in frames.pieces]

    def frames(self) -> "KeptFrames | None":
        """For a call that is made now; None where Dynamo has to have it.

        Several processes that work together are to run the same, and each would decide for itself.
        """
        if has_saved_tensor_hooks() or is_running():
            return None
        if (found := self._by_environment.get(around := environment())) is None:
            found = self._by_environment[around] = KeptFrames(self._recipe, self._is_checked)
        return found


class KeptFrames:
    """The same under the switches that are in force when it is made.

    Comparing it with a call takes longer than Dynamo's own guards do. When it has cost as much as capturing the
    function again, Dynamo does that, and has the calls that follow.

    Attributes:
        name: under which they are kept; None: they are not.
    """

    def __init__(self, recipe: Recipe, is_checked: bool) -> None:
        name = name_of_frames(recipe)
        found = None if name is None else frames_kept(name)
        self.name = None if found is None else name
        self._frames = [_Frame(recipe, data, is_checked) for data in found or ()]
        self._seconds = max((frame.seconds for frame in self._frames), default=0.0)

    @property
    def pieces(self) -> list[KeptPiece]:
        """The graphs of calls that have been made."""
        return [frame.piece for frame in self._frames if frame.piece is not None]

    @property
    def waits(self) -> bool:
        """Whether there are others, for which no call has been made yet."""
        return any(frame.piece is None for frame in self._frames)

    def find(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Run | None:
        """What makes such a call; None if none of them does."""
        if not self._frames:
            return None
        start, before = time.perf_counter(), len(self.pieces)
        found = next((run for frame in self._frames if (run := frame.run_for(args, kwargs))), None)
        self._frames = [frame for frame in self._frames if frame.tries]
        if len(self.pieces) == before:  # else it has been made ready
            self._seconds -= time.perf_counter() - start
            if self._seconds < 0:
                self._frames.clear()
        return found

    def other_sizes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[Tensor, int]]:
        """The sizes in which tensors of a call differ from those of calls that have been made of these."""
        return [size for frame in self._frames for size in frame.other_sizes(args, kwargs)]


class _Frame:
    """One captured call.

    Attributes:
        seconds: that it took to capture it.
        tries: with how many more calls it will be compared before it is given up.
        piece: its graph, once a call is like this.
    """

    def __init__(self, recipe: Recipe, data: Mapping[str, Any], is_checked: bool) -> None:
        self._recipe, self._data, self._is_checked = recipe, data, is_checked
        self.seconds: float = data["seconds"]
        self.tries = TRIES
        self.piece: KeptPiece | None = None
        self._function, self._bound = captured_function(recipe.fn, data["is_plain"])
        self._code = self._function.__code__
        self._values: Callable[..., list[Any]]
        self._sizes: Sequence[Sequence[int] | None] = ()
        self._tensors_in: Callable[..., list[Tensor] | None]
        self._accepts: Callable[..., bool]
        self._run: Callable[..., Any]

    def run_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Run | None:
        """What makes a call, if it is like this."""
        given = (*self._bound, *args)
        if self._function.__code__ is not self._code:  # a notebook has loaded it anew
            self.tries = 0
        elif self.piece is not None or self._prepared(given, kwargs):
            with suppress(Exception):  # a call of another kind may lack anything that is looked at
                tensors = self._tensors_in(*given, **kwargs)
                if tensors is not None and self._accepts(*tensors) and not any(map(is_marked, tensors)):
                    return lambda: self._run(*given, **kwargs)
        return None

    def other_sizes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Tensor, int]]:
        """The sizes in which tensors of a call differ from those of the calls that it has made."""
        values: Sequence[Any] = ()
        if self.piece is not None:
            with suppress(Exception):
                values = self._values(*self._bound, *args, **kwargs)
        for value, sizes in zip(values, self._sizes, strict=False):
            if type(value) is Tensor and sizes is not None and value.dim() == len(sizes):
                yield from ((value, i) for i, size in enumerate(sizes) if value.shape[i] != size)

    def _prepared(self, given: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call is like this, so that it can be made, and others."""
        self.tries -= 1
        with stage("look for a capture"):
            self._compare(given, kwargs)
        if self.piece is not None and self.piece.report is not None:
            checker.raise_if_different(self.piece.report)  # what is undecided is told in each process
        return self.piece is not None

    def _compare(self, given: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        data = self._data
        if any(digest_of_file(path) != digest for path, digest in data["files"].items()):
            self.tries = 0
            return
        with suppress(Exception):
            modules = {name: _space(module) for name, module in data["modules"].items()}
            scope = Scope(self._function, modules)
            self._values = values_of(data["facts"], scope)
            values = self._values(*given, **kwargs)
            tensors = len({id(value) for value in values if isinstance(value, Tensor)})
            if tensors != data["tensors"] or not hold(data["facts"], values, Telling()):
                return
            if (piece := self._piece()) is None:
                return
            self._sizes = [tuple(value.shape) if isinstance(value, Tensor) else None for value in values]
            self._tensors_in = comparison(data["facts"], values, scope)
            facts = zip(data["facts"], values, strict=True)
            self._accepts = tensor_guard([value for fact, value in facts if fact[0] == "tensor"])
            self._run = self._running(piece, modules)
            self.piece, self.tries = piece, TRIES

    def _piece(self) -> KeptPiece | None:
        """Its graph as it was compiled, and checked if that is wanted."""
        data = self._data["piece"]
        backend = get_backend(spec_of(data["backend"]))
        recipe = replace(self._recipe, backend=backend, backend_name=data["backend"], why_backend=data["why"])
        if (made := kept_graphs(data["parts"], backend, recipe.name, guarded=False)) is None:
            return None
        report = kept_verdict(recipe.subject, data["verdict"]) if self._is_checked and data["verdict"] else None
        return None if self._is_checked and report is None else KeptPiece(recipe, made, data["names"], report)

    def _running(self, piece: KeptPiece, modules: Mapping[str, Any]) -> Callable[..., Any]:
        """Dynamo's code as a function, with what it uses among the global variables of the user's.

        Under names of its own: Dynamo expects its names to be free, or to stand for what it has put there itself.
        """
        code, function, number = code_of(self._data["code"]), self._function, next(_numbers)
        space, cells = function.__globals__, dict(zip(self._code.co_freevars, function.__closure__ or (), strict=True))
        added = {**modules, self._data["graph"]: piece}
        own = {name: f"{name}_kept_{number}" for name in added}
        code = code.replace(co_names=tuple(own.get(name, name) for name in code.co_names))
        space.update({own[name]: value for name, value in added.items()})
        for name in own.values():
            weakref.finalize(self, space.pop, name, None)
        closure = tuple(cells[name] for name in code.co_freevars)
        run = types.FunctionType(code, space, code.co_name, function.__defaults__, closure)
        run.__kwdefaults__ = function.__kwdefaults__
        return run


class _Utilities:
    """Dynamo's, which take long to import, and of which most code uses marks in a profile alone."""

    NAME = "torch._dynamo.utils"
    record_pregraph_bytecode_enter = record_pregraph_bytecode_exit = staticmethod(lambda *mark: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.NAME), name)


def _space(module: str) -> Any:
    if module == _Utilities.NAME:
        return _Utilities()
    return vars(builtins) if module == BUILTINS else import_module(module)

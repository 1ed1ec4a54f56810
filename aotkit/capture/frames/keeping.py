"""Keep what Dynamo captured of a call for later processes."""

import builtins
import os
import re
import sys
import time
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aotkit.capture.code_names import nested
from aotkit.capture.digests import digest_of, digest_of_file
from aotkit.capture.frames.code_data import code_data
from aotkit.capture.frames.comparing import Scope, values_of
from aotkit.capture.frames.facts import Fact, facts_of
from aotkit.capture.frames.telling import Telling, Untold
from aotkit.capture.kept_graphs import surroundings
from aotkit.capture.piece import CapturedGraph
from aotkit.capture.reached import OF_THE_PROCESS
from aotkit.capture.recipe import Recipe
from aotkit.keep import is_kept, keep, kept, machine
from aotkit.timeline import stage
from aotkit.torch_private.dynamo import Condition, compiled_frames

KIND = "frames"
MOST = 8  # of one function: for other sizes, modes, settings
BUILTINS = "builtins.__dict__"  # no module, but what Dynamo calls so
# Dynamo takes what these give for a constant.
OF_ONE_PROCESS = OF_THE_PROCESS - {"distributed", "hub", "load"} | {"getpid", "hash", "id", "input", "open"}
# How Dynamo calls what it adds to the user's global variables; the last: by its identity.
_ADDED = re.compile(r"__import_|__builtins_dict__|___|_\d+_c\d")
_BEGAN = time.time()
_GLOBAL = re.compile(r"G\['(\w+)'\]")
# The code of these changes with what the name of a record has in it: versions of torch and of Python.
_KNOWN = tuple(f"{os.path.dirname(str(module.__file__))}{os.sep}" for module in (torch, os))
_OTHERS = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"


class ToldFrame:
    """What Dynamo tells of a frame that it has compiled.

    Attributes:
        function: the frame is of a call of it.
        is_plain: whether it is a copy of the user's own.
        facts: under which it is right; None where these cannot be told.
        tensors: how many these are about; which of them are the same, they say.
    """

    def __init__(self, function: types.FunctionType, is_plain: bool, conditions: Sequence[Condition]) -> None:
        self.function, self.is_plain = function, is_plain
        self.telling = Telling()
        self.facts: list[Fact] | None = None
        self.tensors = len({id(condition.value) for condition in conditions if isinstance(condition.value, Tensor)})
        with suppress(Exception):  # an object of the user's may raise anything where it is looked at
            self.facts = facts_of(conditions, self.telling)


def name_of_frames(recipe: Recipe) -> list[str] | None:
    """All that decides what is captured of a function now, but for what it reads; None where that cannot be told."""
    if not is_kept():
        return None
    if (around := surroundings(recipe.for_inputs(()))) is None:
        return None
    function = getattr(recipe.fn, "__func__", recipe.fn)
    code = digest_of(function.__code__) if isinstance(function, types.FunctionType) else ""
    group = str(torch.distributed.is_available() and torch.distributed.is_initialized())
    return [*machine(), recipe.asked_for, *around, group, f"{function.__module__} {type(function).__qualname__} {code}"]


def keep_frame(name: Sequence[str] | None, piece: CapturedGraph, told: ToldFrame, seconds: float) -> None:
    """Keep what Dynamo captured of a call, if another process could run it.

    If it could not, nothing is kept of the function from then on: where numbers are open that have changed, a process
    that has run what was kept for one would begin with a graph for the next alone. Of sizes it knows.

    Args:
        name: of `name_of_frames`, before anything ran: what surrounds a call is another when Dynamo is in use.
        piece: the only graph of the call.
        told: of Dynamo, about the only frame.
        seconds: that Dynamo took.
    """
    if name is None or (before := frames_kept(name)) is None:
        return
    with stage("keep the capture"):
        try:
            frame = {**_as_data(piece, told), "seconds": seconds}
        except Untold:
            if before and not _has_other_sizes(before, told):
                keep(KIND, name, {"frames": None})
            return
        others = [other for other in before if other["facts"] != frame["facts"]]
        keep(KIND, name, {"frames": [frame, *others][:MOST]})


def _has_other_sizes(frames: Sequence[Mapping[str, Any]], told: ToldFrame) -> bool:
    found = {fact[1]: fact[2] for fact in told.facts or () if fact[0] == "tensor"}
    tensors = (fact for frame in frames for fact in frame["facts"] if fact[0] == "tensor")
    return any(found.get(fact[1], fact[2]) != fact[2] for fact in tensors)


def frames_kept(name: Sequence[str]) -> list[dict[str, Any]] | None:
    """What was kept of a function; None: nothing will be."""
    record: Mapping[str, Any] = kept(KIND, name) or {"frames": []}
    frames: list[dict[str, Any]] | None = record["frames"]
    return frames


def _as_data(piece: CapturedGraph, told: ToldFrame) -> dict[str, Any]:
    facts, kept_as, space = told.facts, piece.kept_as, told.function.__globals__
    if facts is None or kept_as is None:
        raise Untold("conditions or a graph that another process cannot know")
    frames = compiled_frames(told.function)
    code, used = next(((code, used) for code, used in frames if any(v is piece for v in used.values())), (None, {}))
    if code is None:
        raise Untold("code that Dynamo has forgotten")
    graph = next(name for name, value in used.items() if value is piece)
    expressions = {text for kind, *parts in facts for text in parts[: 2 if kind == "same" else 1]}
    mentioned = {name for text in expressions for name in _GLOBAL.findall(text)} & space.keys()
    modules = {name: _added(name, space[name]) for name in {*used, *mentioned} - {graph}}
    # What Dynamo's code uses of the user's module, though Dynamo does not look at that in each call.
    unseen = [name for name in used if modules.get(name, "") is None and f"G[{name!r}]" not in expressions]
    more = [["value", f"G[{name!r}]", told.telling.of(used[name])] for name in unseen]
    values_of([*facts, *more], Scope(told.function, modules))  # of expressions that can be computed without Dynamo
    return {
        "is_plain": told.is_plain,
        "facts": [*facts, *more],
        "tensors": told.tensors,
        "files": _files(piece.traced, told),
        "code": code_data(code),
        "graph": graph,
        "modules": {name: module for name, module in modules.items() if module is not None},
        "piece": kept_as,
    }


def _added(name: str, value: Any) -> str | None:
    """What to import for a global variable that Dynamo has added; None for one of the user's."""
    if not _ADDED.match(name):
        return None
    if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
        return value.__name__
    return BUILTINS if value is vars(builtins) else None


def _files(traced: Sequence[types.CodeType], told: ToldFrame) -> Mapping[str, str]:
    """Digests of the files that the code is in which Dynamo has run through.

    Raises:
        Untold: one of them cannot be read, and no fact tells the code.
    """
    found = {}
    for code in traced:
        path = code.co_filename
        if path.startswith("<frozen") or (path.startswith(_KNOWN) and not _is_installed(path)):
            continue
        if names := OF_ONE_PROCESS.intersection(code.co_names):
            raise Untold(f"{min(names)}() in {code.co_qualname}")
        digest, is_told = digest_of_file(path), code is told.function.__code__ or digest_of(code) in told.telling.codes
        if not is_told and (digest is None or not _is_as_loaded(code, path)):
            raise Untold(f"{code.co_qualname} in {path}")
        if digest is not None:
            found[path] = digest
    return found


def _is_as_loaded(code: types.CodeType, path: str) -> bool:
    """Whether a file still has the code that was loaded of it."""
    if os.stat(path).st_mtime < _BEGAN:
        return True
    now = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    return digest_of(code) in map(digest_of, nested(now))


def _is_installed(path: str) -> bool:
    return any(part in path for part in _OTHERS) and not path.startswith(_KNOWN[0])

"""What `Graphs.json()` is made of, and whether data that comes from elsewhere is that: what works with it need not ask.

Sizes are in bytes, times in seconds. A size that depends on data is None, and counts as 0 in storages and totals.
Nodes, storages, sources, regions and kernels go by their index in their list. A node's index is also its step: the
nodes of forward come first, then those of backward, each in the order of the program, without the outputs.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

SCHEMA = 1  # keys may be added to it; a change of meaning gets another number
ADVICE = "Write one by json.dump(graphs.json(), file)."
_MOST_CHARACTERS = 40
# Below 2**63 all arithmetic on sizes and times stays within the range of a float.
_END = 2**63


def _texts(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "text")


def _or_null(what: Any) -> tuple[None, Any]:
    return None, what


# A dict are the keys of an object, or ANY key; a list has what all its entries are; other words are below, in WORDS, or
# a key of the data: an index into that list.
ANY = "*"
_NODE = {
    "graph": "graph",
    # `operator` such as "mul", `target` such as "aten.mul.Tensor", `expression`: with its arguments, `call`: the same
    # with %0, %1, ... for the nodes that it reads. All four are "" of an input.
    **_texts("name", "operator", "target", "expression", "call"),
    # "matmul" (convolutions and attention, too), "pointwise", "reduction", "random", "view", "constant", "size" (a
    # symbolic number), "input" or "other".
    "class": "text",
    # "input" (of forward), "saved" or "tangent" (inputs of backward), "recomputed" or "view again" (in backward, where
    # forward has computed the same), else "".
    "role": "text",
    # `label`: the user's name of an input; `type`: dtype and shape; `module`: path of the innermost module, or "".
    **_texts("label", "type", "module"),
    "inputs": ["nodes"],  # that it reads
    "tensors": [{"dtype": "text", "shape": ["dimension"], "bytes": _or_null("size")}],
    "storages": ["storages"],  # where they lie
    "source": _or_null("sources"),
    # The one that it is in; or for each backend that takes parts of graphs, why it is in none.
    "region": _or_null("regions"),
    "outside": ["text"],
    # Those that compute it, several where they all do so for themselves. None do inputs, views and what nothing needs.
    "kernels": ["kernels"],
    # Of what is recomputed: bytes moved, and the partitioner's estimate of seconds.
    "cost": _or_null({"nbytes": _or_null("size"), "flops": "size", "seconds": _or_null("seconds")}),
}
_DATA = {
    **_texts("name", "backend", "partition", "torch"),  # what was compiled, by whom, and torch's version
    "nodes": [_NODE],
    "modules": {ANY: "text"},  # path -> name of the class, for each module that is called
    # The user's lines; `file` is below the working directory, else its last two parts.
    "sources": [{"file": "text", "line": "size", "code": "text", "function": "text"}],
    # What forward keeps for backward, in its order. A copy that the compiler keeps of what the caller holds is an
    # activation; its storage is that of the placeholder.
    "saved": [
        {
            # `kind`: "activation", or what the caller holds anyway ("input", "view of input", "output", "view of
            # output"), or "symbolic size".
            **_texts("name", "kind", "reason"),
            "node": "nodes",  # in forward
            "placeholder": _or_null("nodes"),  # in backward
            "readers": ["nodes"],  # what reads it there, or a view of it
            "storage": _or_null("storages"),
            "bytes": _or_null("size"),  # of the storage
        }
    ],
    # `held`: as "input", "constant", "output", "saved", "tangent", "gradient" or "temporary", from step to step.
    "storages": [{"bytes": "size", "held": "text", "first": "nodes", "last": "nodes"}],
    # For each step the bytes alive while it runs, in all and of saved activations, without inputs and constants. It is
    # what the graphs say, run node by node as by `nop`: fused kernels hold less, and operators that take memory for
    # themselves, such as convolutions, more. What is really held, `kernels` have.
    "memory": {"live": ["size"], "saved": ["size"]},
    "outputs": {ANY: [_or_null("nodes")]},  # what "forward" and "backward" return, without what is saved
    # Parts that one backend has compiled. `nodes` are names; with a `failure` it runs as it is.
    "regions": [{"graph": "text", "backend": "text", "nodes": ["text"], "failure": _or_null("text")}],
    # What the backend launches, in order; None where that is not known: compiling alone does not tell it, but the
    # graphs of `explain` have it.
    "kernels": _or_null(
        [
            {
                **_texts("graph", "name", "language", "why"),  # `why` it is not fused with others
                "nodes": ["nodes"],
                "launches": _or_null("size"),  # on the device, if its compiler tells
                # Measured, if it could be told apart: its time, and the most that is held from the end of the kernel
                # before to its own, without inputs.
                "seconds": _or_null("seconds"),
                "peak_bytes": _or_null("size"),
            }
        ]
    ),
    "totals": {
        "saved_bytes": "size",  # distinct storages of saved activations
        "alive_bytes": "size",  # of all else that is saved
        "recomputed": "size",  # nodes
        "views_again": "size",
        "peak_bytes": "size",  # the most of memory.live
        "measured_peak_bytes": _or_null("size"),  # the most that the kernels hold, without inputs, where they are known
    },
}


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < _END


WORDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "schema": (lambda value: type(value) is int and value == SCHEMA, f"{SCHEMA}"),
    "graph": (lambda value: value in ("forward", "backward"), "'forward' or 'backward'"),
    "text": (lambda value: isinstance(value, str), "a text"),
    "size": (_is_whole, "a number of 0 or more, without a fraction"),
    "dimension": (lambda value: isinstance(value, str) or _is_whole(value), "a size, or the name of an open one"),
    "seconds": (lambda value: type(value) in (int, float) and 0 <= value < _END, "a number of 0 or more"),
}


def read_graphs(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `json.dump(graphs.json(), file)` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no graphs, or those of another schema, or damaged ones: the message says where.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as e:
        raise OSError(f"{path} cannot be read: {e.strerror}. {ADVICE}") from e
    except ValueError as e:
        raise ValueError(f"{path} is no JSON: it is not UTF-8. {ADVICE}") from e
    try:
        data: dict[str, Any] = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{path} is no JSON: {e if text else 'it is empty'}. {ADVICE}") from e
    require_graphs(data, str(path))
    return data


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value


def require_graphs(data: Any, name: str) -> None:
    """Return if `data` has all keys of schema 1, of the right types, and links only to what is there.

    Raises:
        ValueError: it has not; the message names the first place that is wrong, and calls the data `name`.
    """
    lists: dict[str, Any] = {key: [{}] for key in ("nodes", "sources", "storages", "regions")}
    try:
        if not isinstance(data, Mapping):
            raise ValueError(f"it is {_shown(data)}")
        _check(data, {"schema": "schema"}, "", {})
        # What links go to is counted before they are followed.
        _check(data, {**lists, "kernels": _or_null([{}])}, "", {})
        _check(data, _DATA, "", {key: len(data[key] or ()) for key in (*lists, "kernels")})
        _require_order(data)
    except ValueError as e:
        raise ValueError(f"{name} holds no graphs of schema {SCHEMA}: {e}. {ADVICE}") from None


def _check(value: Any, wanted: Any, place: str, lengths: Mapping[str, int]) -> None:
    """Raise ValueError if a value, at a place such as "nodes[3].inputs", is not what is wanted there."""
    match wanted:
        case (None, otherwise):
            if value is not None:
                _check(value, otherwise, place, lengths)
        case [of_entry]:
            _require(isinstance(value, list | tuple), value, place, "a list")
            for i, entry in enumerate(value):
                _check(entry, of_entry, f"{place}[{i}]", lengths)
        case {"*": of_value}:
            _require(isinstance(value, Mapping), value, place, "an object")
            for key, one in value.items():
                _check(one, of_value, f"{place}[{_shown(key)}]", lengths)
        case dict():
            _require(isinstance(value, Mapping), value, place, "an object")
            for key, of_value in wanted.items():
                if key not in value:
                    raise ValueError(f"{place or 'it'} has no {key!r}")
                _check(value[key], of_value, f"{place}.{key}" if place else key, lengths)
        case word if word in WORDS:
            holds, what = WORDS[word]
            _require(holds(value), value, place, what)
        case key:
            is_index = type(value) is int and 0 <= value < lengths[key]
            _require(is_index, value, place, f"an index into the {lengths[key]} {key}")


def _require_order(data: Mapping[str, Any]) -> None:
    """A node reads what comes before it, and each step has its memory."""
    for i, node in enumerate(data["nodes"]):
        for place, read in enumerate(node["inputs"]):
            if read >= i:
                raise ValueError(f"nodes[{i}].inputs[{place}] is {read}, which does not come before node {i}")
        if node["operator"] == "getitem" and not node["inputs"]:
            raise ValueError(f"nodes[{i}] is a getitem, but reads nothing")
    for i, row in enumerate(data["saved"]):
        if row["placeholder"] is not None and row["placeholder"] <= row["node"]:
            raise ValueError(f"saved[{i}].placeholder is {row['placeholder']}, which does not come after its node")
    for key in ("live", "saved"):
        steps, nodes = len(data["memory"][key]), len(data["nodes"])
        if steps != nodes:
            raise ValueError(f"memory.{key} has {steps} entries for {nodes} nodes")


def _require(holds: bool, value: Any, place: str, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{place or 'it'} is {_shown(value)}, not {wanted}")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    text = json.dumps(value, default=lambda other: type(other).__name__)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."

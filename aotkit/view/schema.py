"""Whether data is what `model.py` describes: checked where it comes in, so that what works with it need not ask.

A check takes a value and its place in the data, such as "nodes[3].inputs", and raises ValueError if the value is not
what stands there. Keys without a check pass: schema 1 may get more of them.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

SCHEMA = 1
ADVICE = "Write one by json.dump(graphs.json(), file)."
_LINKED = ("nodes", "sources", "storages", "regions")
_MOST_CHARACTERS = 40
# Below 2**63 all arithmetic on sizes and times stays within the range of a float.
_END = 2**63
Check = Callable[[Any, str], None]


def require_graphs(data: Any, name: str) -> None:
    """Return if `data` has all keys of schema 1, of the right types, and links only to what is there.

    Raises:
        ValueError: it has not; the message names the first place that is wrong, and calls the data `name`.
    """
    try:
        if not isinstance(data, Mapping):
            raise ValueError(f"it is {_shown(data)}")
        _object({"schema": _one_of(SCHEMA)})(data, "")
        # What links go to is counted before they are followed.
        of_lists: dict[str, Check] = dict.fromkeys(_LINKED, _list_of(_object({})))
        of_lists["kernels"] = _or_null(_list_of(_object({})))
        _object(of_lists)(data, "")
        _graphs({key: len(data[key] or ()) for key in of_lists})(data, "")
        _require_order(data)
    except ValueError as e:
        raise ValueError(f"{name} holds no graphs of schema {SCHEMA}: {e}. {ADVICE}") from None


def _graphs(lengths: Mapping[str, int]) -> Check:
    """All of it, with lists of so many entries."""
    node, source, storage, region, kernel = (
        _index_of(key, lengths[key]) for key in ("nodes", "sources", "storages", "regions", "kernels")
    )
    cost = _object({"nbytes": _or_null(_size), "flops": _size, "seconds": _or_null(_seconds)})
    tensor = _object({"dtype": _text, "shape": _list_of(_dimension), "bytes": _or_null(_size)})
    texts = dict.fromkeys(
        ("name", "operator", "target", "expression", "call", "class", "role", "label", "type", "module"), _text
    )
    for_each_step = _list_of(_size, lengths["nodes"])
    return _object(
        {
            **dict.fromkeys(("name", "backend", "partition", "torch"), _text),
            "nodes": _list_of(
                _object(
                    {
                        "graph": _one_of("forward", "backward"),
                        **texts,
                        "inputs": _list_of(node),
                        "tensors": _list_of(tensor),
                        "storages": _list_of(storage),
                        "source": _or_null(source),
                        "region": _or_null(region),
                        "outside": _list_of(_text),
                        "kernels": _list_of(kernel),
                        "cost": _or_null(cost),
                    }
                )
            ),
            "modules": _map_of(_text),
            "sources": _list_of(_object({"file": _text, "line": _size, "code": _text, "function": _text})),
            "saved": _list_of(
                _object(
                    {
                        **dict.fromkeys(("name", "kind", "reason"), _text),
                        "node": node,
                        "placeholder": _or_null(node),
                        "readers": _list_of(node),
                        "storage": _or_null(storage),
                        "bytes": _or_null(_size),
                    }
                )
            ),
            "storages": _list_of(_object({"bytes": _size, "held": _text, "first": node, "last": node})),
            "memory": _object({"live": for_each_step, "saved": for_each_step}),
            "outputs": _map_of(_list_of(_or_null(node))),
            "regions": _list_of(
                _object({"graph": _text, "backend": _text, "nodes": _list_of(_text), "failure": _or_null(_text)})
            ),
            "kernels": _or_null(_list_of(_kernel(node))),
            "totals": _object(
                dict.fromkeys(("saved_bytes", "alive_bytes", "recomputed", "views_again", "peak_bytes"), _size)
                | {"measured_peak_bytes": _or_null(_size)}
            ),
        }
    )


def _kernel(node: Check) -> Check:
    return _object(
        {
            **dict.fromkeys(("graph", "name", "language", "why"), _text),
            "nodes": _list_of(node),
            "launches": _or_null(_size),
            "seconds": _or_null(_seconds),
            "peak_bytes": _or_null(_size),
        }
    )


def _require_order(data: Mapping[str, Any]) -> None:
    """A node reads what comes before it."""
    for i, node in enumerate(data["nodes"]):
        for place, read in enumerate(node["inputs"]):
            if read >= i:
                raise ValueError(f"nodes[{i}].inputs[{place}] is {read}, which does not come before node {i}")
        if node["operator"] == "getitem" and not node["inputs"]:
            raise ValueError(f"nodes[{i}] is a getitem, but reads nothing")
    for i, row in enumerate(data["saved"]):
        if row["placeholder"] is not None and row["placeholder"] <= row["node"]:
            raise ValueError(f"saved[{i}].placeholder is {row['placeholder']}, which does not come after its node")


def _object(keys: Mapping[str, Check]) -> Check:
    def check(value: Any, place: str) -> None:
        _require(isinstance(value, Mapping), value, place, "an object")
        for key, of_value in keys.items():
            if key not in value:
                raise ValueError(f"{place or 'it'} has no {key!r}")
            of_value(value[key], f"{place}.{key}" if place else key)

    return check


def _map_of(of_value: Check) -> Check:
    def check(value: Any, place: str) -> None:
        _require(isinstance(value, Mapping), value, place, "an object")
        for key, one in value.items():
            of_value(one, f"{place}[{_shown(key)}]")

    return check


def _list_of(of_entry: Check, length: int | None = None) -> Check:
    def check(value: Any, place: str) -> None:
        _require(isinstance(value, list | tuple), value, place, "a list")
        if length is not None and len(value) != length:
            raise ValueError(f"{place} has {len(value)} entries for {length} nodes")
        for i, entry in enumerate(value):
            of_entry(entry, f"{place}[{i}]")

    return check


def _or_null(otherwise: Check) -> Check:
    def check(value: Any, place: str) -> None:
        if value is not None:
            otherwise(value, place)

    return check


def _one_of(*allowed: Any) -> Check:
    def check(value: Any, place: str) -> None:
        _require(type(value) in map(type, allowed) and value in allowed, value, place, " or ".join(map(repr, allowed)))

    return check


def _index_of(name: str, length: int) -> Check:
    def check(value: Any, place: str) -> None:
        _require(type(value) is int and 0 <= value < length, value, place, f"an index into the {length} {name}")

    return check


def _text(value: Any, place: str) -> None:
    _require(isinstance(value, str), value, place, "a text")


def _size(value: Any, place: str) -> None:
    _require(type(value) is int and 0 <= value < _END, value, place, "a number of 0 or more, without a fraction")


def _dimension(value: Any, place: str) -> None:
    if not isinstance(value, str):  # the name of an open size
        _size(value, place)


def _seconds(value: Any, place: str) -> None:
    _require(type(value) in (int, float) and 0 <= value < _END, value, place, "a number of 0 or more")


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

"""What nodes of a graph take, and what is noted of them, as data: numbers, texts, lists; tensors by what they are.

Most of it is written as JSON has it. A text stands for what JSON does not have: its first letter says what, see
`_READ`. What is long, and the same for many nodes, stands in tables, and goes by its number there.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils.checkpoint import CheckpointPolicy

from aotkit.passes.graph_data.targets import name_of, target_of
from aotkit.torch_private.aotautograd_metadata import described_from, description_parts
from aotkit.torch_private.dispatch import OpOverload
from aotkit.torch_private.fake_tensors import fake_mode, is_fake, like_meta
from aotkit.torch_private.tensors import negated

BY_NAME: dict[type, dict[str, Any]] = {
    kind: {str(v).removeprefix("torch."): v for v in vars(torch).values() if type(v) is kind}
    for kind in (torch.dtype, torch.layout, torch.memory_format)
}
_REQUIRES_GRAD, _CONJUGATE, _NEGATIVE = 1, 2, 4


class NotData(Exception):
    """A graph holds what is no data."""


class Tables:
    """What several graphs of a record share: texts, lists of these such as stack traces, kinds of tensors."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._lists: dict[Hashable, int] = {}
        self._written: list[Any] = []
        self._kinds: dict[tuple[Any, ...], int] = {}
        self._targets: dict[Any, int] = {}

    def text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def list(self, value: Hashable, write: Callable[[], Any]) -> int:
        """The number of what many nodes have: it is written once for each value."""
        if (number := self._lists.get(value)) is None:
            self._written.append(write())
            number = self._lists[value] = len(self._written) - 1
        return number

    def kind(self, *kind: Any) -> int:
        return self._kinds.setdefault(kind, len(self._kinds))

    def target(self, target: Any) -> int:
        """The number of the name of what a node calls.

        Raises:
            NotData: no record may name it.
        """
        if (number := self._targets.get(target)) is None:
            if (name := name_of(target)) is None:
                raise NotData(f"a graph calls {target}")
            number = self._targets[target] = self.text(name)
        return number

    def data(self) -> dict[str, Any]:
        kinds = [
            [_name(dtype), str(device), [*shape], [*strides], offset, bits]
            for dtype, device, shape, strides, offset, bits in self._kinds
        ]
        return {"texts": [*self._texts], "lists": self._written, "kinds": kinds}


class Writer:
    """Writes values of one graph.

    Attributes:
        nodes: those of the graph, to the number that stands for each.
        storages: bytes of each storage that tensors of the graph are in.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.nodes: dict[Node, int] = {}
        self.storages: list[int] = []
        self._numbers: dict[int, int] = {}

    def value(self, value: Any) -> Any:
        """The data of a value.

        Raises:
            NotData: there is none.
        """
        kind = type(value)
        if kind in AS_IT_IS:
            return value
        if (write := _WRITE.get(kind)) is not None:
            return write(self, value)
        if isinstance(value, Tensor):
            return self.tensor(value)
        if (parts := description_parts(value)) is not None:
            name, fields = parts
            return {"description": [name, *map(self.value, fields)]}
        raise NotData(f"a {kind.__name__}")

    def entries(self, values: Iterable[Any]) -> list[Any]:
        return [self.value(value) for value in values]

    def trace(self, text: str) -> int:
        """A stack trace, by lines, which are in others, too."""
        return self.tables.list(text, lambda: [self.tables.text(line) for line in text.split("\n")])

    def modules(self, stack: Mapping[str, tuple[str, Any]]) -> int:
        """The modules around a node, outermost first; a class goes by its name."""
        return self.tables.list(
            tuple(stack.items()),
            lambda: self.value({k: (path, getattr(cls, "__name__", str(cls))) for k, (path, cls) in stack.items()}),
        )

    def tensor(self, value: Tensor) -> str:
        """What is known of a fake tensor: its kind, and its storage."""
        if not is_fake(value) or value.layout is not torch.strided:
            raise NotData("a tensor with values, or without strides")
        storage, shape, strides, offset = value.untyped_storage(), value.shape, value.stride(), value.storage_offset()
        size = storage.nbytes()
        if {*map(type, (*shape, *strides, offset, size))} != {int}:
            raise NotData("an open size")
        number = self._numbers.setdefault(storage._cdata, len(self.storages))
        if number == len(self.storages):
            self.storages.append(size)
        bits = _REQUIRES_GRAD * value.requires_grad | _CONJUGATE * value.is_conj() | _NEGATIVE * value.is_neg()
        return f"t{self.tables.kind(value.dtype, value.device, shape, strides, offset, bits)}.{number}"

    def number(self, value: float | complex) -> Any:
        is_plain = isinstance(value, float) and math.isfinite(value)
        return value if is_plain else f"{type(value).__name__[0]}{value!r}"


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


AS_IT_IS = (type(None), bool, int)
_WRITE: dict[type, Callable[[Writer, Any], Any]] = {
    Node: lambda write, node: f"%{write.nodes[node]}",
    **dict.fromkeys((list, immutable_list), Writer.entries),
    **dict.fromkeys((tuple, torch.Size), lambda write, value: {"tuple": write.entries(value)}),
    **dict.fromkeys((dict, immutable_dict), lambda write, value: {"dict": write.entries(chain(*value.items()))}),
    slice: lambda write, value: {"slice": write.entries((value.start, value.stop, value.step))},
    **dict.fromkeys((float, complex), Writer.number),
    str: lambda write, text: f"${write.tables.text(text)}",
    torch.dtype: lambda _, value: f"d{_name(value)}",
    torch.layout: lambda _, value: f"l{_name(value)}",
    torch.memory_format: lambda _, value: f"m{_name(value)}",
    torch.device: lambda _, value: f"@{value}",
    CheckpointPolicy: lambda _, value: f"p{value.name}",
    OpOverload: lambda write, operator: f"o{write.tables.target(operator)}",
}


class Reader:
    """Reads values of one graph; what no `Writer` has written makes it fail with one error or another.

    Attributes:
        nodes: those that are read so far, to which values may refer.

    Args:
        storages: bytes of each.
    """

    def __init__(self, tables: Mapping[str, Any], storages: Sequence[int]) -> None:
        self._tables = tables
        self.nodes: list[Node] = []
        self._mode = fake_mode()
        storage: Any = torch.UntypedStorage
        self._storages = [storage(size, device="meta") for size in storages]
        self._shared: dict[int, Any] = {}
        self._traces: dict[int, str] = {}
        self._targets: dict[str, Any] = {}

    def value(self, data: Any) -> Any:
        if isinstance(data, str):
            return _READ[data[0]](self, data[1:])
        if isinstance(data, list):
            return [self.value(entry) for entry in data]
        if not isinstance(data, dict):
            return data
        ((kind, inner),) = data.items()
        if kind == "description":
            return described_from(inner[0], [self.value(field) for field in inner[1:]])
        entries = [self.value(entry) for entry in inner]
        if kind == "tuple":
            return tuple(entries)
        if kind == "slice":
            return slice(*entries)
        return dict(zip(entries[::2], entries[1::2], strict=True)) if kind == "dict" else _refuse(kind)

    def shared(self, number: int) -> Any:
        """What stands in a table: one object for all nodes that have it."""
        if number not in self._shared:
            self._shared[number] = self.value(self._tables["lists"][number])
        return self._shared[number]

    def trace(self, number: int) -> str:
        if number not in self._traces:
            self._traces[number] = "\n".join(map(self.text, self._tables["lists"][number]))
        return self._traces[number]

    def text(self, number: int | str) -> str:
        text = self._tables["texts"][int(number)]
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is no text")
        return text

    def target(self, number: int | str) -> Any:
        name = self.text(number)
        if name not in self._targets:
            self._targets[name] = target_of(name)
        return self._targets[name]

    def _node(self, number: str) -> Node:
        return self.nodes[int(number)] if number.isdecimal() else _refuse(number)

    def _tensor(self, text: str) -> Tensor:
        kind, storage = map(int, text.split("."))
        dtype, device, shape, strides, offset, bits = self._tables["kinds"][kind]
        value = torch.empty(0, dtype=BY_NAME[torch.dtype][dtype], device="meta")
        value.set_(self._storages[storage], offset, shape, strides)
        if bits & _CONJUGATE:
            value = value.conj()
        if bits & _NEGATIVE:
            value = negated(value)
        return like_meta(value, torch.device(device), self._mode).requires_grad_(bool(bits & _REQUIRES_GRAD))


def _refuse(text: str) -> Any:
    raise ValueError(f"{text!r} is no value of a graph")


_READ: dict[str, Callable[[Reader, str], Any]] = {
    "%": Reader._node,
    "$": Reader.text,
    "t": Reader._tensor,
    "f": lambda _, text: float(text),
    "c": lambda _, text: complex(text),
    "d": lambda _, text: BY_NAME[torch.dtype][text],
    "l": lambda _, text: BY_NAME[torch.layout][text],
    "m": lambda _, text: BY_NAME[torch.memory_format][text],
    "@": lambda _, text: torch.device(text),
    "p": lambda _, text: CheckpointPolicy[text],
    "o": Reader.target,
}

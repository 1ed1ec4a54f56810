"""Which nodes of two graphs compute the same value: by operator and arguments, never by the names of nodes.

The graphs are those of `Graphs.json()`. Values get numbers, from the inputs on. Two are the same if operator, literals
and the numbers of what they read are: so what backward computes again gets the number that it has in forward, and what
both graphs compute gets the same number in both. Where they differ, by a decomposition or an argument, everything that
reads the result would differ, too. So of what is left, an operation of B is taken for the most similar one of A: one
that reads the same values on the same line of source, or that has the same operator, literals and type there, or at
least operator and literals. What follows from it then matches again.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Data = Mapping[str, Any]
Type = tuple[tuple[str, tuple[Any, ...]], ...]
MOST_CANDIDATES = 16
_SYMBOL = re.compile(r"\b[a-z]+\d+\b")


def values(a: Data, b: Data) -> tuple[list[int], list[int]]:
    """For each node of A, and for each of B, the number of its value."""
    known: dict[Hashable, int] = {}
    given_a, given_b = _inputs(a, b)
    of_a = _numbered(a, known, given_a)
    strict = set(_numbered(b, dict(known), given_b))
    similar = _Similar(a, of_a, {value for value in of_a if value in strict})
    return of_a, _numbered(b, known, given_b, similar)


def types(data: Data) -> list[Type]:
    """dtype and shape of each node's tensors; open sizes go by the order in which they appear."""
    symbols: dict[str, str] = {}

    def named(size: int | str) -> int | str:
        return _SYMBOL.sub(lambda m: symbols.setdefault(m[0], f"s{len(symbols)}"), size) if type(size) is str else size

    return [tuple((t["dtype"], tuple(map(named, t["shape"]))) for t in node["tensors"]) for node in data["nodes"]]


def _place(data: Data, node: Data) -> Hashable:
    """Where in the user's program a node comes from, though lines may have moved; None if that is not known."""
    if node["source"] is None:
        return node["module"] or None
    source = data["sources"][node["source"]]
    return node["module"], source["function"], source["code"] or (source["file"], source["line"])


def paired(a: Iterable[T], b: Iterable[T], *keys: Callable[[T], Hashable]) -> Iterator[tuple[T | None, T | None]]:
    """Each thing of A and of B, together with its partner on the other side, or None.

    Two with equal keys are partners, in their order. What finds none by the first key tries the next; a key of None is
    equal to nothing.
    """
    left_a, left_b = list(a), list(b)
    for key_of in keys:
        waiting: dict[Hashable, deque[T]] = defaultdict(deque)
        for one in left_b:
            waiting[key_of(one)].append(one)
        waiting.pop(None, None)
        alone = []
        for one in left_a:
            if partners := waiting.get(key_of(one)):
                yield one, partners.popleft()
            else:
                alone.append(one)
        rest = {id(one) for partners in waiting.values() for one in partners}
        left_a, left_b = alone, [one for one in left_b if key_of(one) is None or id(one) in rest]
    yield from ((one, None) for one in left_a)
    yield from ((None, one) for one in left_b)


def is_operation(node: Data) -> bool:
    """Whether it calls an operator, other than to pick one of several results or to compute a size."""
    return node["class"] not in ("input", "size") and node["operator"] != "getitem" and not _is_constant(node)


def _is_constant(node: Data) -> bool:
    """Whether it is a tensor, or a graph, that the graph holds."""
    return bool(node["call"]) and node["call"] == f"constant {node['target']}"


def _numbered(
    data: Data, known: dict[Hashable, int], given: Mapping[int, Hashable], similar: "_Similar | None" = None
) -> list[int]:
    """The number of each node of one side.

    Args:
        known: the numbers given so far, by what is computed; gets more.
        given: what inputs and constants are.
    """
    numbers: list[int] = []
    drawn: dict[Hashable, int] = defaultdict(int)
    saved = {row["placeholder"]: row["node"] for row in data["saved"]}
    for i, (node, kind) in enumerate(zip(data["nodes"], types(data), strict=True)):
        if i in saved:
            numbers.append(numbers[saved[i]])
            continue
        reads = tuple(numbers[j] for j in node["inputs"])
        key: Hashable = given.get(i, (node["call"], reads))
        if node["class"] == "random":  # each draw is a value of its own
            drawn[key] += 1
            key = key, drawn[key]
        if key not in known:
            found = similar.find(node, reads, kind, _place(data, node)) if similar else None
            known[key] = len(known) if found is None else found
        numbers.append(known[key])
    return numbers


class _Similar:
    """Values of A that nothing in B is equal to, to be found by what is similar."""

    def __init__(self, a: Data, numbers: Sequence[int], taken: set[int]) -> None:
        self._taken = taken
        self._reads: dict[int, tuple[int, ...]] = {}
        self._waiting: dict[Hashable, deque[int]] = defaultdict(deque)
        for value, node, kind in zip(numbers, a["nodes"], types(a), strict=True):
            if value not in taken and value not in self._reads:
                self._reads[value] = tuple(numbers[j] for j in node["inputs"])
                for key in _similarities(node, self._reads[value], kind, _place(a, node)):
                    self._waiting[key].append(value)

    def find(self, node: Data, reads: tuple[int, ...], kind: Type, where: Hashable) -> int | None:
        """The value that reads most of the same values, the first of several; it is taken then."""
        for key in _similarities(node, reads, kind, where):
            waiting = self._waiting.get(key, deque())
            while waiting and waiting[0] in self._taken:
                waiting.popleft()
            candidates = list(islice((v for v in waiting if v not in self._taken), MOST_CANDIDATES))
            if candidates:
                best = max(candidates, key=lambda value: len(set(self._reads[value]).intersection(reads)))
                self._taken.add(best)
                return best
        return None


def _similarities(node: Data, reads: tuple[int, ...], kind: Type, where: Hashable) -> Iterator[Hashable]:
    """What two operations that are not equal may have in common, the best first."""
    if not is_operation(node):  # which is the same where what it reads is
        return
    if reads:
        yield "reads", node["graph"], node["operator"], reads, where
    if where is not None:
        yield "type", node["graph"], node["call"], kind, where
        yield "call", node["graph"], node["call"], where


class _Given(NamedTuple):
    """An input or a constant: `kind` is "input", "tangent" or "constant"; `nodes` are those that stand for it."""

    kind: str
    name: str
    type: Type
    nodes: tuple[int, ...]


def _inputs(a: Data, b: Data) -> tuple[dict[int, Hashable], dict[int, Hashable]]:
    """What each input and constant is: the same for two that go together.

    Inputs go by the user's names, others by types and their order; tangents by types, then by their order alone.
    Constants go by their names and types, then by types. Their values are not in the data.
    """
    numbers: tuple[dict[int, Hashable], dict[int, Hashable]] = {}, {}
    pairs = paired(
        _given(a), _given(b),
        lambda g: (g.kind, g.name, g.type) if g.name else None,
        lambda g: (g.kind, g.name) if g.name and g.kind == "input" else None,
        lambda g: (g.kind, g.type),
        lambda g: g.kind if g.kind == "tangent" else None,
    )  # fmt: skip
    for number, pair in enumerate(pairs):
        for of_side, given in zip(numbers, pair, strict=True):
            of_side.update(dict.fromkeys(given.nodes if given else (), ("given", number)))
    return numbers


def _given(data: Data) -> list[_Given]:
    saved, kinds = {row["placeholder"] for row in data["saved"]}, types(data)
    constants: dict[str, list[int]] = defaultdict(list)
    found = []
    for i, node in enumerate(data["nodes"]):
        if node["class"] == "input" and i not in saved:
            kind = "input" if node["graph"] == "forward" else "tangent"
            found.append(_Given(kind, node["label"], kinds[i], (i,)))
        elif _is_constant(node):
            constants[node["target"]].append(i)
    return found + [_Given("constant", name, kinds[nodes[0]], tuple(nodes)) for name, nodes in constants.items()]

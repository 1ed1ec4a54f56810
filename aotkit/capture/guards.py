"""Generated code that decides whether a compilation is valid for a call, and fetches its tensors, in one pass.

A guard compares everything that tracing has baked into a graph: switches and modes (`aot.SWITCHES`), the structure of
the arguments and their constants, and what the function captures. Its tensors are compared afterwards, by
`Entry.accepts`.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from aotkit.capture.arguments import is_size, structure_of
from aotkit.capture.objects import constant_set, is_constant, same_constant, same_constants
from aotkit.capture.refusals import EagerOnly
from aotkit.torch_private import native
from aotkit.torch_private.dispatch import pytree
from aotkit.torch_private.switches import REASONS_FOR_EAGER, SURROUNDINGS, SWITCHES, environment

Guard = Callable[[tuple[Any, ...], Mapping[str, Any]], list[Tensor] | None]
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MODULE_STATE = ("training", "_parameters", "_buffers", "_modules", *HOOKS)
MOST_ALTERNATIVES = 100  # conditions in one line of source; Python's parser has a limit on their depth


@dataclass
class _Tree:
    """A list of the members of a module, of its children, ...

    Attributes:
        variable: holds it.
        size: how many there are so far.
    """

    variable: str
    size: int = 0


class GuardSource:
    """The source of a function from canonical `args, kwargs` to the flat tensors of a call.

    Each line finds an object, or returns None because something is no longer as it was.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._globals: dict[str, Any] = {f.__name__: f for f in (same_constant, same_constants, constant_set)}
        self._paths: dict[str, str] = {}  # of each variable the expression
        self._places: dict[str, tuple[_Tree, Any, int]] = {}

    def copy(self) -> "GuardSource":
        """A guard that begins with the same lines."""
        other = GuardSource()
        other._lines, other._globals, other._paths = [*self._lines], {**self._globals}, {**self._paths}
        return other

    def bind(self, value: Any) -> str:
        """A name by which the source can speak of an object."""
        name = f"c{len(self._globals)}"
        self._globals[name] = value
        return name

    def assign(self, expression: str) -> str:
        """Find an object; returns the variable that holds it."""
        variable = f"v{len(self._paths)}"
        self._paths[variable] = expression
        self._lines.append(f"{variable} = {expression}")
        return variable

    def require(self, condition: str) -> None:
        """Compare."""
        self._lines.append(f"if not ({condition}): return None")

    def require_false(self, conditions: Sequence[str]) -> None:
        """Compare several things that nearly always are empty, in as little time as possible."""
        for i in range(0, len(conditions), MOST_ALTERNATIVES):
            self._lines.append(f"if {' or '.join(conditions[i : i + MOST_ALTERNATIVES])}: return None")

    def require_constant(self, expression: str, value: Any) -> None:
        """Compare with a constant; nearly always it is the very same object."""
        if value is None or isinstance(value, bool):
            self.require(f"{expression} is {value}")
            return
        c = self.bind(value)
        same = (
            f"type(x) is {type(value).__name__} and x == {c}" if type(value) in (int, str) else f"same_constant(x, {c})"
        )
        self.require(f"(x := {expression}) is {c} or {same}")

    def require_type(self, variable: str, value: Any) -> None:
        """Compare the type with that of `value`."""
        self.require(f"type({variable}) is {self.bind(type(value))}")

    def require_keys(self, expression: str, keys: Sequence[Any]) -> None:
        """Compare the keys of a dict, and their order."""
        if not keys:
            self.require(f"not {expression}")
        elif all(type(key) is str for key in keys):
            self.require(f"[*{expression}] == {self.bind([*keys])}")
        else:
            self.require(f"same_constants({expression}, {self.bind([*keys])})")

    def require_no_attributes(self, variables: Sequence[str]) -> None:
        """Compare the Python attributes of tensors that had none."""
        if variables and (library := native.library()) is not None:
            self.require(f"{self.bind(library.have_no_attributes)}({', '.join(variables)})")
        elif variables:
            self.require(f"not any(map(vars, ({', '.join(variables)},)))")

    def require_module(self, variable: str, module: nn.Module) -> dict[tuple[str, str], str]:
        """Compare the class of a module, its mode, and the names of its attributes and members.

        Returns:
            for each member, by group and name, the expression that finds it.
        """
        state = vars(module)
        expected = {key: _expected(key, value) for key, value in state.items()}
        members = [(group, key) for group, keys in expected.items() if isinstance(keys, tuple) for key in keys]
        if (library := native.library()) is not None:
            guard = library.ModuleGuard(type(module), module.training, tuple(expected), tuple(expected.values()))
            return dict(zip(members, self._members(variable, guard, len(members)), strict=True))
        self.require_type(variable, module)
        held = self.assign(f"{variable}.__dict__")
        self.require_keys(held, list(state))
        self.require(f"{held}['training'] is {module.training}")
        self.require_false([f"{held}[{key!r}]" for key, empty in expected.items() if empty is True])
        groups = {group: self.assign(f"{held}[{group!r}]") for group in dict(members)}
        for group, found in groups.items():
            self.require_keys(found, list(state[group]))
        return {(group, key): f"{groups[group]}[{key!r}]" for group, key in members}

    def _members(self, variable: str, guard: Any, count: int) -> list[str]:
        """Where a guard in C++ puts the members of a module: one call takes a whole tree of modules apart."""
        tree, parent, number = self._places.get(self._paths[variable], (None, None, 0))
        if tree is None or parent is None:
            tree = _Tree(self.assign(f"{self.bind(guard)}({variable})"))
            self.require(f"{tree.variable} is not None")
        else:
            parent.add(number, guard)
        found = [f"{tree.variable}[{tree.size + i}]" for i in range(count)]
        tree.size += count
        self._places |= {place: (tree, guard, i) for i, place in enumerate(found)}
        return found

    def require_environment(self) -> None:
        """Compare the switches and modes that surround a call."""
        self._globals.update(SURROUNDINGS)
        for switch, value in zip(SWITCHES, environment(), strict=True):
            self.require_constant(f"({switch})", value)
        self.require_false(list(REASONS_FOR_EAGER))

    def compile(self, found: Sequence[str]) -> Guard:
        """The function; it returns the objects that the variables `found` stand for."""
        body = "\n        ".join(self._lines)
        source = (
            f"def guard(args, kwargs):\n    try:\n        {body}\n        return [{', '.join(found)}]\n"
            "    except (AttributeError, IndexError, KeyError, TypeError, ValueError):\n        return None\n"
        )
        exec(compile(source, "<aotkit guard>", "exec"), self._globals)
        return self._globals["guard"]  # type: ignore[no-any-return]


def _expected(key: str, value: Any) -> Any:
    """What `ModuleGuard` compares of an attribute: members' names, True for nothing, False for the mode, or None."""
    if key == "training":
        return False
    if key not in MODULE_STATE:
        return None
    if not value:
        return True
    return tuple(value) if key in ("_parameters", "_buffers", "_modules") else None


class ArgumentGuard:
    """Adds the lines that take the arguments of a call apart, and compare all but their tensors and objects.

    Attributes:
        tensors: by the variables that hold them, in the order of `flatten`.
        objects: the same for everything that is neither a tensor nor a constant.
    """

    def __init__(self, source: GuardSource, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._source = source
        self.tensors: dict[str, Tensor] = {}
        self.objects: dict[str, Any] = {}
        source.require(f"len(args) == {len(args)}")
        for i, value in enumerate(args):
            self._visit(value, f"args[{i}]")
        source.require_keys("kwargs", list(kwargs))
        for key, value in kwargs.items():
            self._visit(value, f"kwargs[{key!r}]")

    def _visit(self, value: Any, path: str) -> None:
        if is_constant(value):
            self._source.require_constant(path, value)
            return
        variable = self._source.assign(path)
        if isinstance(value, Tensor):
            self.tensors[variable] = value
        elif type(value) in (tuple, list):
            self._source.require_type(variable, value)
            self._source.require(f"len({variable}) == {len(value)}")
            for i, part in enumerate(value):
                self._visit(part, f"{variable}[{i}]")
        elif type(value) is dict and all(map(is_constant, value)):
            self._source.require_type(variable, value)
            self._source.require_keys(variable, list(value))
            for key, part in value.items():
                self._visit(part, f"{variable}[{self._source.bind(key)}]")
        else:
            self._container(value, variable)

    def _container(self, value: Any, variable: str) -> None:
        leaves, spec = pytree.tree_flatten(value, is_leaf=is_size)
        if len(leaves) == 1 and leaves[0] is value:
            self.objects[variable] = value
            return
        parts, structure = self._source.bind(_parts), self._source.bind(structure_of(spec))
        leaves_of = self._source.assign(f"{parts}({variable}, {structure})")
        self._source.require(f"{leaves_of} is not None")
        for i, leaf in enumerate(leaves):
            self._visit(leaf, f"{leaves_of}[{i}]")


def _parts(value: Any, structure: Hashable) -> Sequence[Any] | None:
    """The leaves of any container that pytree knows, if it has this structure."""
    leaves, spec = pytree.tree_flatten(value, is_leaf=is_size)
    try:
        return leaves if structure_of(spec) == structure else None
    except EagerOnly:
        return None

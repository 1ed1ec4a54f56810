"""Facts as Python code, which compares them in each call."""

import ast
import keyword
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aotkit.capture.frames.facts import Fact
from aotkit.capture.frames.telling import Untold
from aotkit.capture.objects import EXACT

CALLED = frozenset({
    "type", "list", "tuple", "dict.keys", "dict.__getitem__", "object.__getattribute__", "type.__getattribute__",
})  # fmt: skip
PREFIX = "aotkit_"  # no variable of the frame is called so
Values = Callable[..., Any]


class Scope:
    """Where the expressions of facts have their values: the variables of a function's frame, and its module's.

    Args:
        function: the frame is of a call of it.
        modules: what names that Dynamo has added to the function's module stand for.
    """

    def __init__(self, function: types.FunctionType, modules: Mapping[str, Any]) -> None:
        code = function.__code__
        self.function, self.modules = function, modules
        self.given = [*code.co_varnames[: _count(code)]]
        self.cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        if not all(map(_is_name, self.given)):
            raise Untold("a variable without a name")

    def compiled(self, lines: Sequence[str], constants: Mapping[str, Any]) -> Values:
        """A function that takes what the frame's takes, and consists of these lines."""
        code = self.function.__code__
        positional, keywords = code.co_argcount, code.co_kwonlyargcount
        parts = [*self.given[:positional]]
        if code.co_posonlyargcount:
            parts.insert(code.co_posonlyargcount, "/")
        rest = self.given[positional + keywords :]
        if code.co_flags & 4:  # CO_VARARGS
            parts.append(f"*{rest.pop(0)}")
        elif keywords:
            parts.append("*")
        parts += self.given[positional : positional + keywords]
        parts += [f"**{name}" for name in rest]
        text = "\n    ".join([f"def compared({', '.join(parts)}):", *lines])
        space: dict[str, Any] = {
            f"{PREFIX}globals": self.function.__globals__, **constants,
            **{f"{PREFIX}cell_{name}": cell for name, cell in self.cells.items()},
            **{f"{PREFIX}module_{name}": module for name, module in self.modules.items()},
        }  # fmt: skip
        exec(compile(text, "<aotkit facts>", "exec"), space)
        made: Any = space["compared"]
        made.__defaults__, made.__kwdefaults__ = self.function.__defaults__, self.function.__kwdefaults__
        return made  # type: ignore[no-any-return]


class Lines:
    """Lines that compute expressions, what they share once."""

    def __init__(self, scope: Scope) -> None:
        self.lines: list[str] = []
        self._scope = scope
        self._names: dict[str, str] = {}

    def name_of(self, expression: str) -> str:
        """The variable that has the value of an expression.

        Raises:
            Untold: it is none of what Dynamo writes.
        """
        return self._name(ast.parse(expression, mode="eval").body)

    def _name(self, node: ast.expr) -> str:
        text = ast.unparse(node)
        if text not in self._names:
            found = self._text(node)
            if not found.isidentifier():
                name = f"{PREFIX}{len(self._names)}"
                self.lines.append(f"{name} = {found}")
                found = name
            self._names[text] = found
        return self._names[text]

    def _text(self, node: ast.expr) -> str:
        match node:
            case ast.Subscript(ast.Name("L"), ast.Constant(str(name))):
                return f"{PREFIX}cell_{name}.cell_contents" if name in self._scope.cells else self._given(name)
            case ast.Subscript(ast.Name("G"), ast.Constant(str(name))):
                is_added = name in self._scope.modules
                return f"{PREFIX}module_{name}" if is_added else f"{PREFIX}globals[{name!r}]"
            case ast.Call(ast.Name("dict"), [space], []):  # a copy, of which Dynamo reads one key
                return self._name(space)
            case ast.Call(function, arguments, []) if ast.unparse(function) in CALLED:
                return f"{ast.unparse(function)}({', '.join(map(self._name, arguments))})"
            case ast.Attribute(value, name):
                return f"{self._name(value)}.{name}"
            case ast.Subscript(value, index):
                return f"{self._name(value)}[{self._name(index)}]"
            case ast.Constant() | ast.UnaryOp(ast.USub(), ast.Constant()):
                return ast.unparse(node)
        raise Untold(f"an expression such as {ast.unparse(node)}")

    def _given(self, name: str) -> str:
        if name not in self._scope.given:
            raise Untold(f"a variable {name!r} that is not given")
        return name


def values_of(facts: Sequence[Fact], scope: Scope) -> Values:
    """A function that takes what the frame's takes, and returns the values that the facts are about."""
    lines = Lines(scope)
    names = [lines.name_of(fact[1]) for fact in facts]
    return scope.compiled([*lines.lines, f"return [{', '.join(names)}]"], {})


def comparison(facts: Sequence[Fact], values: Sequence[Any], scope: Scope) -> Values:
    """A function that takes what the frame's takes, and returns the tensors that facts are about, or None.

    Args:
        values: what the facts are about now, of which they are true; None if something is another later.
    """
    lines, tensors, constants = Lines(scope), list[str](), dict[str, Any]()
    for i, (fact, value) in enumerate(zip(facts, values, strict=True)):
        name, constant = lines.name_of(fact[1]), f"{PREFIX}constant_{i}"
        match fact:
            case "value", *_:
                constants[constant] = value
                same = f"{name} is {constant}"
                if type(value) in EXACT and value is not None:
                    constants[f"{constant}_type"] = type(value)
                    same = f"({same} or (type({name}) is {constant}_type and {name} == {constant}))"
                wrong = f"not {same}"
            case "type", *_:
                constants[constant] = type(value)
                wrong = f"type({name}) is not {constant}"
            case "keys", *_:
                constants[constant] = [*dict.keys(value)]
                wrong = f"[*dict.keys({name})] != {constant}"
            case "length", _, count:
                wrong = f"len({name}) != {count}"
            case "contains", _, key, is_in:
                wrong = f"({key!r} in {name}) is not {is_in}"
            case "attribute", _, attribute, has:
                wrong = f"hasattr({name}, {attribute!r}) is not {has}"
            case "absent", _, attribute:
                wrong = f"{attribute!r} in {name}.__dict__"
            case "empty", _:
                wrong = name
            case "same", _, other:
                wrong = f"{name} is not {lines.name_of(other)}"
            case "tensor", *_:
                tensors.append(name)
                continue
        lines.lines.append(f"if {wrong}: return None")
    return scope.compiled([*lines.lines, f"return [{', '.join(tensors)}]"], constants)


def _count(code: types.CodeType) -> int:
    stars = bool(code.co_flags & 4) + bool(code.co_flags & 8)  # CO_VARARGS, CO_VARKEYWORDS
    return code.co_argcount + code.co_kwonlyargcount + stars


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith(PREFIX)

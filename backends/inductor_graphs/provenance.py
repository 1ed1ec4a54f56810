"""Which operations of a graph are in which of Inductor's kernels, and the code of these.

Inductor notes that itself while it compiles (`trace.provenance_tracking_level`), and keeps it with what it stores on
disk. In the code that it writes, a comment with the number of the kernel stands before each launch. An operator of
ATen's that adds up what the programs of a kernel have summed, each for itself, has neither number nor operations.
"""

import ast
import functools
import json
import linecache
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any

from aotkit.stages import Kernel

LIBRARY = "Inductor leaves it to a library"
_HANDLE = re.compile(r"\[Provenance debug handles\] (\S+):(\d+)$")
# Above the code of a Triton kernel. The only note on kernels that reduce along two dimensions at once.
_FRAGMENT = re.compile(r"^#   %(\w+) : .*call_function", re.MULTILINE)
# As a kernel has it that reduces along two dimensions at once.
_ADDING = re.compile(r"\w+\[.*\]\.view\(.*\)\.(\w+)\(dim=0\)")
_LANGUAGES = {"cpp_pybinding": "C++", "cpp": "C++", "triton": "Triton"}


def kernels_of(compiled: Any) -> list[Kernel]:
    """The kernels of a `CompiledFxGraph`, in the order in which they are launched.

    Their operations are nodes of the graph that was compiled, and some that Inductor has put in place of others.
    """
    noted = json.loads(getattr(compiled, "inductor_provenance_mapping_str", None) or "{}")
    before: dict[str, list[str]] = noted.get("postToPre", {})
    source = getattr(compiled, "source_code", "")  # a graph without operations is not compiled
    code, languages, fragments = _definitions(source)
    is_own = functools.partial(_is_own, code)
    names, operations = [], []
    for name, nodes in _launches(source, noted.get("cppCodeToPost", {}), fragments):
        names.append(name)
        operations.append(dict.fromkeys(old for new in nodes for old in before.get(new, [new])))
    _leave_to_fused(operations, list(map(is_own, names)))
    return [
        Kernel(
            name, tuple(own), languages.get(name, "Inductor" if is_own(name) else "ATen"), code.get(name, ""),
            why="" if is_own(name) else LIBRARY,
        )
        for name, own in zip(names, operations, strict=True)
    ]  # fmt: skip


def _definitions(source: str) -> tuple[dict[str, str], dict[str, str], dict[str, list[str]]]:
    """Of each kernel that is defined in the code: its source, the language of that, the nodes it is said to have."""
    code, languages, fragments = {}, {}, {}
    try:
        body = ast.parse(source).body
    except SyntaxError:  # of the wrapper in C++
        return {}, {}, {}
    lines = source.splitlines()
    end = 0
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Attribute(attr=kind), args=arguments)):
                texts = [a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                if kind in _LANGUAGES and texts:
                    code[name], languages[name] = max(texts, key=len).strip("\n"), _LANGUAGES[kind]
                    fragments[name] = _FRAGMENT.findall("\n".join(lines[end : statement.lineno]))
        end = statement.end_lineno or end
    return code, languages, fragments


def _is_own(code: Mapping[str, str], name: str) -> bool:
    """Whether Inductor has written a kernel: its wrapper in C++ defines them in other ways."""
    return name in code or name.startswith(("triton_", "cpp_fused_"))


def _launches(
    source: str, noted: dict[str, list[str]], fragments: dict[str, list[str]]
) -> Iterator[tuple[str, list[str]]]:
    """What is launched, in the order of the code, by the name of the kernel, and the nodes it is said to have.

    Args:
        noted: by `name:number`.
        fragments: of kernels without a number, by name.
    """
    left = dict(noted)
    numbered = ""
    for line in source.splitlines():
        if handle := _HANDLE.search(line):
            numbered = handle[1]
            if (nodes := left.pop(f"{handle[1]}:{handle[2]}", None)) is not None:
                yield numbered, nodes
        elif (run := re.match(r"\s+(\w+)\.run\(", line)) and run[1] in fragments:
            if run[1] != numbered:
                yield run[1], fragments[run[1]]
            numbered = ""
        elif operator := _adding(line):
            yield operator, []
    for launch, nodes in left.items():
        yield launch.rpartition(":")[0], nodes


def _leave_to_fused(operations: Sequence[dict[str, None]], is_fused: Sequence[bool]) -> None:
    """A library's kernel is said to have what its inputs are computed by; that is in the kernels before it."""
    fused = {n for own, fuses in zip(operations, is_fused, strict=True) if fuses for n in own}
    for own, fuses in zip(operations, is_fused, strict=True):
        if not fuses and not fused.issuperset(own):
            for name in fused.intersection(own):
                del own[name]


def with_launches(
    method: MethodType, around: Callable[[int], AbstractContextManager[None]], names: Sequence[str]
) -> Any:
    """The same method of the same object, with each statement that launches kernel number `i` inside of `around(i)`."""
    code = method.__func__.__code__
    tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    functions = {f.lineno: f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)}
    function = functions[code.co_firstlineno]
    _Bracketing(list(names)).visit(function)
    module = ast.fix_missing_locations(ast.Module([function], []))
    namespace = {**method.__func__.__globals__, "_around": around}
    exec(compile(module, code.co_filename, "exec"), namespace)
    return MethodType(namespace[code.co_name], method.__self__)


def _adding(statement: str) -> str | None:
    """The operator of ATen's that adds up parts; None: it is another statement."""
    found = _ADDING.search(statement)
    return found and f"aten.{found[1]}"


def _called(call: ast.Call) -> str:
    return _adding(ast.unparse(call)) or ast.unparse(call.func).removesuffix(".run")


class _Bracketing(ast.NodeTransformer):
    """Puts launches, which are in the order of `names`, into `with _around(number)`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._next = names, 0

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        return self._bracketed(node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        return self._bracketed(node)

    def _bracketed(self, node: ast.Expr | ast.Assign) -> ast.stmt:
        called = _called(node.value) if isinstance(node.value, ast.Call) else ""
        if called not in self._names[self._next :]:
            return node
        number = self._names.index(called, self._next)  # one that is not found stays as it is
        self._next = number + 1
        around = ast.parse(f"with _around({number}): pass").body[0]
        assert isinstance(around, ast.With)
        around.body = [node]
        return around

"""What Inductor wrote for one graph, as data, and run again in another process.

Where the kernels are C++ for the CPU and what calls them takes nothing else from Inductor, the compiled kernels are
loaded as they are, and Inductor is not even imported. Else the whole code runs, much as Inductor itself would run it.
"""

import ast
import builtins
import importlib.util
import linecache
import os
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from aotkit.torch_private.tensors import aligning, data_pointer

INDUCTOR = "torch._inductor"
LIBRARIES = "extern_kernels"  # Inductor's name for operators that write into a given tensor
# Takes most of a second.
LIBRARIES_IMPORT = f"from torch._inductor.select_algorithm import {LIBRARIES}\n"
# Functions of the code for who runs it as a program.
_FOR_PROGRAMS = ("get_args", "benchmark_compiled_module")


def source_of(compiled: Any) -> str | None:
    """All that decides what a `CompiledFxGraph` computes: its code, and Inductor's key, which has the settings."""
    code, key = (getattr(compiled, name, None) for name in ("source_code", "_fx_graph_cache_key"))
    return f"{key}\n{code}" if code and key else None


def code_as_data(compiled: Any) -> tuple[dict[str, Any], Mapping[str, Path]] | None:
    """Of a `CompiledFxGraph`: what `Loaded` takes, and where its compiled kernels are; None where that is not all.

    Constants that the code refers to are tensors of this process.
    """
    source, key = (getattr(compiled, name, None) for name in ("source_code", "_fx_graph_cache_key"))
    method = getattr(getattr(compiled, "compiled_fn_runner", None), "call", None)
    if not source or not key or not isinstance(method, types.MethodType) or getattr(compiled, "constants", None):
        return None
    own, names = _calling(source)
    given: dict[str, Any] = method.__func__.__globals__
    kernels = {name: path for name in names if (path := _binary(given.get(name))) is not None}
    text = own if own is not None and len(kernels) == len(names) else source.replace(LIBRARIES_IMPORT, "")
    libraries = _libraries(text, given)
    data = {
        "source": source,
        "key": key,
        "notes": getattr(compiled, "inductor_provenance_mapping_str", None),
        "running": source if libraries is None else text,
        "libraries": libraries,
    }
    return data, kernels if text is own and libraries is not None else {}


def _calling(source: str) -> tuple[str | None, list[str]]:
    """The part of the code that calls kernels, None if it needs Inductor; and the names of the kernels."""
    lines = source.splitlines(keepends=True)
    own, kernels, defined = [], [], set(dir(builtins)) | {LIBRARIES}
    try:
        statements = ast.parse(source).body
    except SyntaxError:  # C++
        return None, []
    for statement in statements:
        if (kernel := _kernel(statement)) is not None:
            kernels.append(kernel)
        elif not _is_for_compiling(statement):
            own.append("".join(lines[statement.lineno - 1 : statement.end_lineno]))
            defined |= set(_bound(statement))
    text = "\n".join(own)
    nodes = [*ast.walk(ast.parse(text))]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    local = {name.id for name in names if not isinstance(name.ctx, ast.Load)}
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    is_known = {name.id for name in names} <= defined | local | {*kernels} | arguments
    return (text if is_known and INDUCTOR not in text else None), kernels


def _bound(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _kernel(statement: ast.stmt) -> str | None:
    """The name of the kernel for the CPU that a statement defines."""
    match statement:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Call(func=ast.Attribute(value=ast.Name(id="async_compile"), attr="cpp_pybinding")),
        ):
            return name
    return None


def _is_for_compiling(statement: ast.stmt) -> bool:
    """Whether it is nothing to a call: Inductor's own tools, and the program that the file is, too."""
    match statement:
        case ast.ImportFrom(module=str(module)):
            return module.startswith(INDUCTOR)
        case ast.Assign(targets=[ast.Name(id="async_compile")]) | ast.If():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="async_compile")))):
            return True
        case ast.Delete(targets=[ast.Name(id="async_compile")]) | ast.Expr(value=ast.Constant()):
            return True
        case ast.FunctionDef(name=name):
            return name in _FOR_PROGRAMS
    return False


def _libraries(text: str, given: Mapping[str, Any]) -> list[str] | None:
    """What the code calls of `extern_kernels`, if these are functions of torch by the same names."""
    names = set(re.findall(rf"\b{LIBRARIES}\.(\w+)", text))
    of_torch = [name for name in names if getattr(given.get(LIBRARIES), name, None) is getattr(torch, name, names)]
    return sorted(of_torch) if len(of_torch) == len(names) else None


def _binary(kernel: Any) -> Path | None:
    """The library that a kernel in C++ is in."""
    module = getattr(kernel, "__self__", None)
    path = getattr(module, "__file__", None) if isinstance(module, types.ModuleType) else None
    return Path(path) if path else None


class Loaded:
    """What stands in for a `CompiledFxGraph` of another process.

    Args:
        data: from `code_as_data`.
        alignment: the arguments of Inductor's `align_inputs_from_check_idxs`, if inputs are to be aligned.
        kernels: where the compiled kernels are now.

    Attributes: as there.
    """

    _boxed_call = True

    def __init__(
        self, data: Mapping[str, Any], alignment: Mapping[str, Sequence[int]], kernels: Mapping[str, Path]
    ) -> None:
        self.source_code: str = data["source"]
        self._fx_graph_cache_key: str = data["key"]
        self.inductor_provenance_mapping_str: str | None = data["notes"]
        text = data["running"]
        name = f"<Inductor {data['key']}>"
        linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        namespace: dict[str, Any] = {"__name__": name, "__file__": name}
        if data["libraries"] is not None:
            libraries = {library: getattr(torch, library) for library in data["libraries"]}
            namespace[LIBRARIES] = types.SimpleNamespace(**libraries)
        namespace.update({kernel: _load(path) for kernel, path in kernels.items()})
        exec(compile(text, name, "exec"), namespace)
        self.compiled_fn_runner = namespace["runner"]
        self.current_callable = namespace["runner"].call
        if alignment:
            self.current_callable = aligning(self.current_callable, **alignment)

    def __call__(self, inputs: list[Any]) -> Any:
        return self.current_callable(inputs)


def _load(path: Path) -> Any:
    """A kernel of Inductor's for the CPU: a function in a library of its own."""
    # Whoever loads one tells it so how to find the memory of a tensor.
    os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(data_pointer())
    specification = importlib.util.spec_from_file_location(f"{path.stem}.kernel", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.kernel

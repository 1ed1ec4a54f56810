"""Calls of what Inductor compiled, without its extras.

Inductor's own entry costs 0.7 us, and the code that it writes begins with an assertion per input, 0.25 us each. Here
one guard checks all inputs at once; assertions about what other libraries' kernels return stay.
"""

import functools
import linecache
import re
import textwrap
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

from aotkit.backends.inductor_graphs.alignment import aligned, within_alignment
from aotkit.backends.inductor_graphs.call_frames import with_room_for_calls
from aotkit.interfaces import Boxed
from aotkit.torch_private.tensors import tensor_guard

# torch 2.11 gives these no last argument; of other kernels' results it is the name of the operator.
_INPUT_ASSERTION = re.compile(r"assert_size_stride\(\w+, \([^()]*\), \([^()]*\)(, 'input')?\)")


def short_call(compiled: Any, are_fixed: bool) -> Boxed:
    """The way to call a `CompiledFxGraph` often.

    The result has an attribute `unchecked`: the same for inputs known to have the types, sizes and strides that it was
    compiled for. It is absent if the graph has open sizes. The result is `compiled` itself if it was compiled in a way
    that is not known here.

    Args:
        are_fixed: whether all inputs are tensors of fixed sizes.
    """
    if are_fixed:
        rewritten = rewritten_call(compiled, functools.partial(_without_input_assertions, owner=compiled))
        return compiled if rewritten is None else _guarded(rewritten, compiled)
    rewritten = rewritten_call(compiled, _with_room)  # with its assertions: they tell open sizes, too
    return compiled if rewritten is None else _after_the_first(rewritten, compiled)


def _guarded(rewritten: Boxed, compiled: Any) -> Boxed:
    """Calls the first where the inputs are what they were when the second asserted that they are right."""
    accepts: Callable[..., bool] | None = None

    def call(inputs: list[Any]) -> Sequence[Any]:
        nonlocal accepts
        if accepts is not None and accepts(*inputs):
            return rewritten(inputs)
        guard = tensor_guard(inputs)
        results = compiled(inputs)
        accepts = guard
        return results  # type: ignore[no-any-return]

    call._boxed_call = True  # type: ignore[attr-defined]
    call.unchecked = rewritten  # type: ignore[attr-defined]
    return call


def _after_the_first(rewritten: Boxed, compiled: Any) -> Boxed:
    """Calls the second once, which prepares what it needs, then the first."""
    run: Boxed = compiled

    def call(inputs: list[Any]) -> Sequence[Any]:
        nonlocal run
        results = run(inputs)
        run = rewritten
        return results

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def rewritten_call(compiled: Any, rewrite: Callable[[MethodType], Boxed]) -> Boxed | None:
    """The same as calling `compiled`, with the method that it calls rewritten; None if that is not known here."""
    runner = getattr(compiled, "compiled_fn_runner", None)
    method = getattr(runner, "call", None)
    if not isinstance(method, MethodType):
        return None
    called, alignment = within_alignment(compiled.current_callable)
    if called != method:
        return None
    return aligned(rewrite(method), **alignment) if alignment else rewrite(method)


def _without_input_assertions(method: MethodType, owner: Any) -> MethodType:
    """The same method of the same object, with its source changed.

    The module that Inductor wrote stays as it is: `torch.compile` may share it, in this process and on disk.

    Args:
        owner: to be kept alive with it.
    """
    code = method.__func__.__code__
    source = "\n" * (code.co_firstlineno - 1) + _INPUT_ASSERTION.sub("pass", _source(method))
    namespace: dict[str, Any] = {}
    exec(compile(source, code.co_filename, "exec"), method.__func__.__globals__, namespace)
    function = namespace[code.co_name]
    function.compiled = owner
    return with_room_for_calls(MethodType(function, method.__self__), source)


def _with_room(method: MethodType) -> MethodType:
    return with_room_for_calls(method, _source(method))


def _source(method: MethodType) -> str:
    code = method.__func__.__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    end = next((i for i, line in enumerate(lines) if i and line.strip() and _indent(line) <= _indent(lines[0])), None)
    return textwrap.dedent("".join(lines[:end]))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())

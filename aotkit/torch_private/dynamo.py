"""TorchDynamo's capture, and the backends that it knows."""

import dis
import functools
import itertools
import operator
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils.hooks import RemovableHandle

# torch's own default is 8.
MOST_DYNAMO_VARIANTS = 64
LIMIT_HIT = "Dynamo recompile limit exceeded"
_numbers = itertools.count()


def dynamo_backend(name: str) -> Callable[..., Any]:
    """A graph compiler that hands each graph to the backend that torch._dynamo knows under `name`.

    Raises:
        LookupError: it knows none of that name.
    """
    import torch._dynamo as dynamo
    from torch._dynamo.exc import InvalidBackend
    from torch._guards import tracing

    try:
        compiler = dynamo.lookup_backend(name)
    except InvalidBackend:
        known = ", ".join(dynamo.list_backends(exclude_tags=()))
        raise LookupError(f"torch._dynamo has no backend named {name!r}. It has: {known}.") from None

    def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        with tracing(None), torch.no_grad():
            run = compiler(gm, list(example_inputs))
        # Whatever attributes say, a Dynamo backend's result takes its inputs one by one.
        return lambda *inputs: run(*inputs)

    compile_graph.__name__ = f"dynamo:{name}"
    return compile_graph


def dynamo_compile(
    fn: Callable[..., Any],
    backend: Callable[..., Any],
    dynamic: bool | None,
    *,
    own_errors: type[Exception],
    too_many: Callable[[], Exception] | None,
    tell: "Tell | None" = None,
) -> Callable[..., Any]:
    """`torch.compile` with a backend of ours.

    Args:
        own_errors: those of the backend that come as they are.
        too_many: makes what to raise where Dynamo gives up after many variants; None: it runs eagerly then.
        tell: is told under which conditions Dynamo runs what it has compiled, of each frame.
    """
    from torch._dynamo import config
    from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit

    correct_in_place_results()
    compiled, parts = _compiled_by_dynamo(fn, backend, dynamic, tell)
    # `config.patch` would leave some memory behind in each call.
    limits = functools.partial(
        config._make_closure_patcher,
        fail_on_recompile_limit_hit=too_many is not None,
        recompile_limit=MOST_DYNAMO_VARIANTS,
        allow_unspec_int_on_nn_module=True,  # a number of a module that changes is an input, as others are
    )
    owner = getattr(fn, "__self__", fn)
    hooks = _Hooks(owner) if isinstance(owner, nn.Module) else None
    # Else hooks that a part of a module gets later would not run.
    limit: Any = limits(skip_nnmodule_hook_guards=hooks is not None)

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal backend, compiled, parts, hooks, limit
        if hooks is not None and hooks.have_come():  # once more, with Dynamo's guards of them
            backend = _another(backend)
            compiled, parts = _compiled_by_dynamo(fn, backend, dynamic, tell)
            hooks, limit = None, limits(skip_nnmodule_hook_guards=False)
        if parts and any(map(operator.is_not, parts, _parts(fn))):  # a notebook has loaded it anew
            compiled, parts = _compiled_by_dynamo(fn, backend, dynamic, tell)
        restore = limit()
        try:
            return compiled(*args, **kwargs)
        except BackendCompilerFailed as e:
            if isinstance(e.inner_exception, own_errors):
                raise e.inner_exception from e.inner_exception.__cause__
            raise
        except FailOnRecompileLimitHit as e:
            raise (too_many() if too_many else e) from e
        finally:
            restore()

    return call


class _Hooks:
    """Whether a part of a module has got hooks since the first call.

    Dynamo's own guards look at each part in each call: 150 us for a GPT-2 of 12 layers, whose call takes 1.1 ms then.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self._next, self._known = module, -1, list[Any]()

    def have_come(self) -> bool:
        """Whether there are others than at the last call."""
        before, self._next = self._next, RemovableHandle.next_id
        if before == self._next:
            return False
        known, self._known = self._known, [*map(_hooks_of, self._module.modules())]
        return before >= 0 and known != self._known


def _hooks_of(module: nn.Module) -> Sequence[Sequence[int]]:
    """Their numbers, of which none comes twice."""
    kinds = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return [*map(tuple, kinds)]


def _another(backend: Callable[..., Any]) -> Callable[..., Any]:
    """The same, which Dynamo takes for another one: nothing that it has compiled is for this."""

    def compiler(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
        return backend(gm, example_inputs)

    return compiler


def _compiled_by_dynamo(
    fn: Callable[..., Any], backend: Callable[..., Any], dynamic: bool | None, tell: "Tell | None"
) -> tuple[Callable[..., Any], Sequence[Any]]:
    """`torch.compile` of a function, with code of its own.

    Dynamo counts compilations by code object. Which sizes have changed between calls it remembers by the name of code,
    torch 2.11 by that alone. So no two share either.

    Returns:
        (that, what of the function it is a copy of): nothing if it calls the function, whose own frame Dynamo then
        captures once more, from its start, if the graph ends in it.
    """
    is_plain = _is_plain(fn.__func__ if isinstance(fn, MethodType) else fn)
    function, bound = captured_function(fn, is_plain)
    code, defaults, keyword_defaults = parts = _parts(function)
    name = f"{code.co_name}_{next(_numbers)}"
    copied = FunctionType(code.replace(co_name=name), function.__globals__, name, defaults, function.__closure__)
    copied.__kwdefaults__ = keyword_defaults
    options: Any = None if tell is None else {"guard_filter_fn": functools.partial(_told, tell, copied, is_plain)}
    compiled = torch.compile(copied, backend=backend, dynamic=dynamic, options=options)
    return functools.partial(compiled, *bound) if bound else compiled, parts if is_plain else ()


def captured_function(fn: Callable[..., Any], is_plain: bool) -> tuple[FunctionType, Sequence[Any]]:
    """The function whose frame Dynamo captures of a call of this one, and what its first arguments are.

    Args:
        is_plain: whether that is the function itself.
    """
    if isinstance(fn, MethodType) and is_plain:
        return fn.__func__, (fn.__self__,)  # type: ignore[return-value]
    if is_plain:
        return fn, ()  # type: ignore[return-value]

    def captured(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return captured, ()  # type: ignore[return-value]


@dataclass(frozen=True)
class Condition:
    """One of those under which Dynamo runs what it has compiled of a frame.

    Attributes:
        kind: Dynamo's name.
        expression: of Python; `L` has the frame's variables in it, `G` its module's. "" where it is about none.
        value: that of the expression.
        arguments: what more there is to it: a key, the name of an attribute, another expression.
    """

    kind: str
    expression: str
    value: Any
    arguments: Sequence[Any]


# The function whose frame it is, whether that is a copy of the user's own, and the conditions.
Tell = Callable[[FunctionType, bool, Sequence[Condition]], None]


def _told(tell: Tell, function: FunctionType, is_plain: bool, entries: Sequence[Any]) -> list[bool]:
    """A filter of Dynamo's guards that lets all pass."""
    with suppress(Exception):  # Dynamo would fail with it: then there is nothing to tell
        tell(function, is_plain, [told for told in map(_condition, entries) if told is not None])
    for entry in entries:
        # Dynamo makes all guards once more, and may have other objects then, as a tensor of a NumPy array.
        entry.orig_guard.obj_weakref = None
    return [True] * len(entries)


def _condition(entry: Any) -> Condition | None:
    guard, made = entry.orig_guard, entry.orig_guard.create_fn
    given = (*made.args, *made.keywords.values()) if isinstance(made, functools.partial) else ()
    arguments = [getattr(argument, "name", argument) for argument in given]
    if entry.guard_type == "HASATTR" and not arguments:  # in torch 2.11, about the attribute
        if not guard.code_list:  # another guard says the same
            return None
        has, source = not guard.code_list[-1].startswith("not "), guard.originating_source
        return Condition(entry.guard_type, source.base.name, None, [source.member, has])
    return Condition(entry.guard_type, guard.name if entry.has_value else "", entry.value, arguments)


def compiled_frames(function: FunctionType) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    """Code that Dynamo runs in place of a function's, and the global variables of that."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    space = function.__globals__
    for entry in _debug_get_cache_entry_list(function.__code__):
        names = {i.argval for i in dis.get_instructions(entry.code) if i.opname.endswith("_GLOBAL")} & space.keys()
        yield entry.code, {name: getattr(space[name], "_torchdynamo_orig_callable", space[name]) for name in names}


def _parts(fn: Any) -> tuple[Any, Any, Any]:
    return fn.__code__, fn.__defaults__, fn.__kwdefaults__


def _is_plain(function: Any) -> bool:
    """Whether Dynamo captures the frame of a function as that of any other."""
    from torch._dynamo.trace_rules import check, lookup
    from torch._dynamo.variables import UserFunctionVariable

    if type(function) is not FunctionType:
        return False
    is_marked = any(name.startswith("_torchdynamo") for name in vars(function))
    return not is_marked and not check(function) and lookup(function) is UserFunctionVariable


def is_dynamos_own(error: Exception) -> bool:
    """Whether Dynamo itself catches this, or tells it in its own way."""
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(error, TorchDynamoException) or ends_graph(error)


def ends_graph(error: Exception) -> bool:
    """Whether Dynamo answers this by a smaller graph, or by leaving a frame as it is."""
    from torch._dynamo.exc import exceptions_allowed_to_be_fallback

    return isinstance(error, exceptions_allowed_to_be_fallback)


def end_graph(why: str) -> NoReturn:
    """Have Dynamo leave in Python what it has captured, called by a backend."""
    from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

    raise UnsupportedFakeTensorException(why)


def graph_breaks() -> dict[str, int]:
    """How often Dynamo has ended a graph early so far, by the reasons that it gives."""
    return dict(_counters()["graph_break"])


def limits_hit() -> int:
    """How often Dynamo has given up on a function, or on a part of one, after many variants."""
    return sum(count for what, count in _counters()["unimplemented"].items() if what.startswith(LIMIT_HIT))


def _counters() -> Any:
    """Dynamo's, by what they count."""
    module: Any = sys.modules.get("torch._dynamo.utils")  # which takes a second to import
    return defaultdict(dict) if module is None else module.counters


def phases() -> dict[str, float]:
    """Seconds that torch.compile has spent so far in this process, by its own account."""
    from torch._dynamo.utils import compile_times

    names, seconds = compile_times(repr="csv", aggregate=True)
    found = {name: float(str(text)) for name, text in zip(names, seconds, strict=True)}
    parts = ("_compile.compile_inner", "OutputGraph.call_user_compiler", "compile_fx_inner")
    whole, backend, graphs = (found.get(name, 0.0) for name in parts)
    return {"TorchDynamo": whole - backend, "AOTAutograd": max(backend - graphs, 0.0), "Inductor": graphs}


@functools.cache
def correct_in_place_results() -> None:
    """Have Dynamo keep the attributes of an input together, whatever names its in-place results have.

    To it, what `p -= x` returns is another tensor than `p`. An attribute of that, such as `p.grad = None` after it, was
    lost, and `p.grad` was None: the next backward pass added to gradients that a step had used (pytorch/pytorch#113160
    and #113271, which are closed; torch 2.11 to 2.15).

    For good: what is captured otherwise is right thereby, too.
    """
    from torch._dynamo.side_effects import SideEffects
    from torch._dynamo.variables import VariableTracker, tensor

    variable: Any = tensor.TensorVariable

    def of_input(name: str) -> None:
        on = getattr(SideEffects, name)

        @functools.wraps(on)
        def corrected(self: Any, item: Any, *args: Any, **kwargs: Any) -> Any:
            return on(self, _changed(self, item), *args, **kwargs)

        setattr(SideEffects, name, corrected)

    for name in ("store_attr", "load_attr", "has_pending_mutation_of_attr"):
        of_input(name)

    # torch 2.11 has no such method: there, the graph asks the tensor itself.
    own_gradient = getattr(variable, "method_attr_grad", None)
    if own_gradient is None:
        return

    def gradient(self: Any, tx: Any) -> Any:
        changed = _changed(tx.output.side_effects, self)
        if changed is self:
            return own_gradient(self, tx)
        read, name = (VariableTracker.build(tx, value) for value in (getattr, "grad"))
        return read.call_function(tx, [changed, name], {})

    variable.method_attr_grad = gradient


def _changed(side_effects: Any, item: Any) -> Any:
    """The input that an in-place operator returned, if this is its result; else the item itself."""
    from torch._dynamo.variables.tensor import TensorVariable

    if not isinstance(item, TensorVariable) or item.source is not None:
        return item
    node: Any = item.as_proxy().node
    value = node.meta.get("example_value")
    while node is not None and node.op != "placeholder":
        node = next((n for n in node.all_input_nodes if n.meta.get("example_value") is value), None)
    argument = None if node is None else node.meta.get("grapharg")
    return item if argument is None else side_effects.id_to_variable.get(id(argument.example), item)

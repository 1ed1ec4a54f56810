"""The conditions under which Dynamo runs what it captured, as facts: data that another process compares.

A fact is a list: a kind, an expression of Python, and what is true of its value. In the expression, `L` has the frame's
variables and `G` its module's.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from aotkit.capture.frames.telling import Telling, Untold
from aotkit.passes import tensor_kind
from aotkit.torch_private.dynamo import Condition

Fact = list[Any]
# Which text and number a kind of fact is about is the same in all processes.
KEYS = (str, int, bool, type(None))
# What surrounds a call: the record has it in its name, and each call compares it.
SURROUNDING = frozenset({
    "AUTOGRAD_SAVED_TENSORS_HOOKS", "DEFAULT_DEVICE", "DETERMINISTIC_ALGORITHMS", "GLOBAL_STATE", "GRAD_MODE",
    "SHAPE_ENV", "TORCH_FUNCTION_STATE",
})  # fmt: skip


def facts_of(conditions: Sequence[Condition], telling: Telling) -> list[Fact]:
    """At least what the conditions say.

    Raises:
        Untold: another process could not know whether one of them holds.
    """
    return [fact for condition in conditions for fact in _facts(condition, telling)]


def _facts(condition: Condition, telling: Telling) -> list[Fact]:
    kind, expression, value = condition.kind, condition.expression, condition.value
    if kind in SURROUNDING:
        return []
    if (make := _MAKERS.get(kind)) is None or not expression:
        raise Untold(f"a condition of kind {kind}")
    return [[name, expression, *told] for name, *told in make(value, condition.arguments, telling)]


def _of_value(value: Any, arguments: Sequence[Any], telling: Telling) -> list[Fact]:
    return [["value", telling.of(value)]]


def _of_type(value: Any, arguments: Sequence[Any], telling: Telling) -> list[Fact]:
    return [["type", telling.of(type(value))]]


def _of_length(value: Any, arguments: Sequence[Any], telling: Telling) -> list[Fact]:
    return [*_of_type(value, arguments, telling), ["length", len(value)]]


def _of_keys(value: Any, arguments: Sequence[Any], telling: Telling) -> list[Fact]:
    return [*_of_type(value, arguments, telling), ["keys", [*map(telling.of, dict.keys(value))]]]


def _of_key(value: Any, arguments: Sequence[Any], telling: Telling) -> list[Fact]:
    key = _key(arguments)
    return [["contains", key, key in value]]


def _of_attribute(value: Any, arguments: Sequence[Any], telling: Telling) -> list[Fact]:
    name = _key(arguments)
    return [["attribute", name, arguments[1] if len(arguments) > 1 else hasattr(value, name)]]


def _of_own_attribute(value: Any, arguments: Sequence[Any], telling: Telling) -> list[Fact]:
    return [["absent", _key(arguments)]]


def _of_hooks(value: Any, arguments: Sequence[Any], telling: Telling) -> list[Fact]:
    return [["empty"]]


def _of_tensor(value: Any, arguments: Sequence[Any], telling: Telling) -> list[Fact]:
    if type(value) not in (Tensor, nn.Parameter):
        raise Untold(f"a {type(value).__name__}")
    return [["tensor", kind_of(value)]]


def _of_twins(value: Any, arguments: Sequence[Any], telling: Telling) -> list[Fact]:
    return [["same", arguments[0]]]


def _key(arguments: Sequence[Any]) -> Any:
    key = arguments[0]
    if type(key) not in KEYS:
        raise Untold(f"a key that is a {type(key).__name__}")
    return key


def kind_of(tensor: Tensor) -> str:
    """What compiled code may rely on."""
    return f"{tensor_kind(tensor)} {tensor.is_leaf}"


# By Dynamo's names of conditions.
_MAKERS: dict[str, Callable[[Any, Sequence[Any], Telling], list[Fact]]] = {
    **dict.fromkeys((
        "BOOL_MATCH", "BUILTIN_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "CONSTANT_MATCH", "EQUALS_MATCH",
        "FUNCTION_MATCH", "ID_MATCH", "MODULE_MATCH", "NONE_MATCH",
    ), _of_value),
    "TYPE_MATCH": _of_type,
    "SEQUENCE_LENGTH": _of_length,
    "DICT_KEYS_MATCH": _of_keys,
    "DICT_CONTAINS": _of_key,
    "DICT_NOT_CONTAINS": _of_key,
    "HASATTR": _of_attribute,
    "NOT_PRESENT_IN_GENERIC_DICT": _of_own_attribute,
    "EMPTY_NN_MODULE_HOOKS_DICT": _of_hooks,
    "TENSOR_MATCH": _of_tensor,
    "DUPLICATE_INPUT": _of_twins,
}  # fmt: skip


def hold(facts: Sequence[Fact], values: Sequence[Any], telling: Telling) -> bool:
    """Whether the facts are true of these values of their expressions, told as texts."""
    try:
        return all(_holds(fact, value, telling) for fact, value in zip(facts, values, strict=True))
    except (Untold, TypeError):  # of another kind
        return False


def _holds(fact: Fact, value: Any, telling: Telling) -> bool:
    match fact:
        case "value", _, text:
            return bool(telling.of(value) == text)
        case "type", _, text:
            return bool(telling.of(type(value)) == text)
        case "keys", _, texts:
            return bool([*map(telling.of, dict.keys(value))] == texts)
        case "tensor", _, text:
            return type(value) in (Tensor, nn.Parameter) and kind_of(value) == text
    return True  # what each call compares is compared now, too

"""A call as data: which of its arguments, and of its model's tensors, are inputs of a graph, and what it returns."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from aotkit.capture import Parameters, flatten
from aotkit.errors import UnsupportedError
from aotkit.torch_private.dispatch import pytree
from aotkit.torch_private.switches import environment

IN_JSON = (type(None), bool, int, float, str)


def described(
    fn: Any, args: Sequence[Any], kwargs: dict[str, Any], inputs: Sequence[Any], outputs: Sequence[Any], result: Any
) -> dict[str, Any]:
    """A call of `fn` that has run one graph.

    Args:
        inputs: of the graph, without a seed.
        outputs: of the graph.
        result: what the call has returned.

    Raises:
        UnsupportedError: the call is more than its graph.
    """
    arguments = flatten(*Parameters(fn).canonical(tuple(args), kwargs))
    if arguments.objects:
        raise UnsupportedError(
            f"a step that is given a {type(arguments.objects[0]).__name__} cannot be saved: only tensors, and None, "
            "numbers and strings, in tuples, lists and dicts."
        )
    owner = owner_of(fn)
    places: dict[int, list[Any]] = {id(t): ["state", name] for name, t in state_of(owner).items()}
    places.update((id(t), ["argument", i]) for i, t in enumerate(arguments.tensors))
    returned, spec = pytree.tree_flatten(result)
    outcome = {id(t): ["output", i] for i, t in enumerate(outputs)}
    return {
        "arguments": [["tensor"] if isinstance(leaf, Tensor) else _constant(leaf) for leaf in arguments.leaves],
        "structure": pytree.treespec_dumps(arguments.spec),
        "inputs": [_place(x, places, "reads") for x in inputs],
        "layouts": [layout_of(x) for x in inputs],
        "result": [_place(x, places | outcome, "returns") if isinstance(x, Tensor) else _constant(x) for x in returned],
        "result_structure": pytree.treespec_dumps(spec),
        "modules": modules_of(owner),
        "switches": str(environment()),
    }


def owner_of(fn: Any) -> nn.Module | None:
    """The module whose method it is."""
    owner = getattr(fn, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def state_of(owner: nn.Module | None) -> dict[str, Tensor]:
    """Its parameters and buffers, by name; one that it has twice, by its first."""
    if owner is None:
        return {}
    return {**dict(owner.named_parameters()), **dict(owner.named_buffers())}


def modules_of(owner: nn.Module | None) -> list[list[Any]]:
    """Of each of its modules the name, the class, and whether it is in training mode."""
    found = [] if owner is None else owner.named_modules()
    return [[name, f"{type(m).__module__}.{type(m).__qualname__}", m.training] for name, m in found]


def layout_of(tensor: Tensor) -> dict[str, Any]:
    """All that compiled code may rely on but the values."""
    return {
        "dtype": str(tensor.dtype),
        "device": str(tensor.device),
        "shape": [*tensor.shape],
        "stride": [*tensor.stride()],
        "offset": tensor.storage_offset(),
        "requires_grad": tensor.requires_grad,
    }


def _place(value: Any, places: Mapping[int, list[Any]], does: str) -> list[Any]:
    if (place := places.get(id(value))) is None:
        what = f"a tensor of shape {[*value.shape]}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise UnsupportedError(
            f"a step that {does} {what}, which is neither an argument nor a parameter or buffer of its module, cannot "
            "be saved. Pass it as an argument."
        )
    return place


def _constant(value: Any) -> list[Any]:
    if type(value) not in IN_JSON:
        raise UnsupportedError(
            f"a step that takes or returns {value!r} cannot be saved: only tensors, and None, numbers and strings."
        )
    return ["constant", value]

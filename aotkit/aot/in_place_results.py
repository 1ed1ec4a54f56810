"""A repair of TorchDynamo: to it, what `p -= x` returns is another tensor than `p`.

An attribute of that, such as `p.grad = None` after it, was lost, and `p.grad` was None: the next backward pass added to
gradients that a step had used (pytorch/pytorch#113160 and #113271, which are closed; torch 2.11 to 2.15).
"""

import functools
from typing import Any


@functools.cache
def correct_in_place_results() -> None:
    """Have Dynamo keep the attributes of an input together, whatever names its in-place results have.

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

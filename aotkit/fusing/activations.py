"""Where the activations of a model are, and the layers around them that are worth compiling with them."""

import inspect
from collections.abc import Iterator

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from aotkit.passes import is_operation

# Where activations are defined. What else is there has parts of its own.
_HOMES = ("torch.nn.modules.activation", "transformers.activations")


def activations(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Module]]:
    """Each activation of a model, and the module that has it: (name, module, name of the other, that); each once."""
    for owner_name, owner in model.named_modules():
        for child_name, child in owner.named_children():
            if is_activation(child):
                yield f"{owner_name}.{child_name}".lstrip("."), child, owner_name, owner


def is_activation(module: nn.Module) -> bool:
    """Whether a module is a function of one tensor, element by element or nearly so, of torch's or transformers'."""
    return type(module).__module__ in _HOMES and not _has_children(module) and takes_one_argument(module)


def is_block(module: nn.Module) -> bool:
    """Whether a module is layers and activations one after the other: an MLP, or a linear layer and its activation.

    That is, all its parts are layers without parts, it has no tensors of its own, and takes one argument.
    """
    if any(map(_has_children, module.children())) or not takes_one_argument(module):
        return False
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    learns = [child for child in module.children() if not is_activation(child) and [*child.parameters()]]
    return not own and bool(learns)


def why_not_alone(activation: nn.Module) -> str | None:
    """Why an activation is not worth compiling by itself; None if it is."""
    held = next(iter(activation.parameters()), torch.empty(0))
    try:
        with torch.no_grad():
            traced = make_fx(lambda x: activation(x))(torch.ones(8, device=held.device))
    except Exception as e:  # whatever it raises for an input that it is not made for
        return f"it cannot be looked into by itself ({type(e).__name__}: {e})"
    return "it is one operator" if sum(map(is_operation, traced.graph.nodes)) <= 1 else None


def takes_one_argument(module: nn.Module) -> bool:
    """Whether `forward` needs one argument, and takes no number of others."""
    parameters = inspect.signature(module.forward).parameters.values()
    required = [p for p in parameters if p.default is p.empty]
    return len(required) == 1 and not any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _has_children(module: nn.Module) -> bool:
    return next(module.children(), None) is not None

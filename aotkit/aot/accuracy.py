"""torch's own check of a compiled function, as its accuracy minifier does it: for comparison with aotkit's.

Source: `same_two_models` and `run_fwd_maybe_bwd` in torch/_dynamo/debug_utils.py: a loss that is the mean of all
outputs, a reference in float64 if there is one, and `torch._dynamo.utils.same` with the minifier's tolerance.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def aot_compiled(fn: Any, forward: Any, backward: Any, partition: Any, dynamic: bool) -> Callable[..., Any]:
    """A function or module under torch's own front end, which checks nothing: `aot_function` or `aot_module`."""
    from functorch.compile import aot_function, aot_module, make_boxed_func

    def boxed(compiler: Any) -> Any:
        return lambda gm, example_inputs: make_boxed_func(compiler(gm, example_inputs))

    options = {
        "fw_compiler": boxed(forward),
        "bw_compiler": boxed(backward or forward),
        "partition_fn": partition,
        "dynamic": dynamic,
    }
    compiled: Callable[..., Any] = (aot_module if isinstance(fn, nn.Module) else aot_function)(fn, **options)
    return compiled


def observed(call: Callable[..., Any], module: Any, args: Sequence[Any], leaves: Sequence[Tensor]) -> list[Any]:
    """What torch's check compares of one run: outputs, loss, gradients and buffers; a missing gradient is zero.

    Args:
        module: what `call` runs; its parameters get gradients if it is a module.
    """
    from torch._dynamo.testing import reduce_to_scalar_loss, requires_bwd_pass
    from torch.utils._pytree import tree_leaves

    state = nn.ModuleList([module] if isinstance(module, nn.Module) else [])
    differentiated = [*leaves, *state.parameters()]
    for leaf in differentiated:
        leaf.grad = None
    outputs = [value for value in tree_leaves(call(*args)) if isinstance(value, Tensor)]
    loss: Any = None
    if requires_bwd_pass(outputs):
        loss = reduce_to_scalar_loss([value for value in outputs if value.requires_grad])
        loss.real.backward()
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in differentiated]
    results = [outputs, [] if loss is None else [loss], gradients, list(state.buffers())]
    return [[value.detach().clone() for value in values] for values in results]


def same_by_torch(reference: list[Any], result: list[Any], exact: list[Any] | None) -> bool:
    """Whether torch takes two results of `observed` for equal.

    Args:
        exact: the same in float64, None if that cannot be had.
    """
    from torch._dynamo import config
    from torch._dynamo.utils import same

    def say_nothing(*args: Any) -> None:
        return None

    log = logging.getLogger(same.__module__)  # warns of each NaN
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return same(reference, result, exact, tol=config.repro_tolerance, equal_nan=True, log_error=say_nothing)
    finally:
        log.setLevel(level)

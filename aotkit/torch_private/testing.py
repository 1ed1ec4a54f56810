"""torch's own tests: its database of operators, and its check of a compiled function, for comparison with aotkit's.

Source of the check: `same_two_models` and `run_fwd_maybe_bwd` in torch/_dynamo/debug_utils.py, as its accuracy minifier
does it: a loss that is the mean of all outputs, a reference in float64 if there is one, and `torch._dynamo.utils.same`
with the minifier's tolerance.
"""

import functools
import importlib
import logging
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

SEED = 20


@functools.cache
def operators() -> dict[str, Any]:
    """Every operator that can be differentiated in float32 on a CPU, under its full name.

    Raises:
        ImportError: what the database needs is not installed.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            database: Any = importlib.import_module("torch.testing._internal.common_methods_invocations")
    except ImportError as e:
        raise ImportError(f"PyTorch's test database needs more packages ({e}): pip install expecttest") from e
    # The database seeds inside of random operators; no graph can hold that, and callers seed outside.
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {
        op.full_name: op
        for op in database.op_db
        if op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")
    }


def samples(operator: str, device: str = "cpu") -> Sequence[Any]:
    """The operator's samples in float32; new tensors with the same values on every call."""
    seed()
    with warnings.catch_warnings(action="ignore"):
        return list(operators()[operator].sample_inputs(device, torch.float32, requires_grad=True))


def function(operator: str, sample: Any) -> Callable[..., Any]:
    """The operator itself; or followed by what makes its result unique, such as the signs of eigenvectors."""
    op, process = operators()[operator].op, sample.output_process_fn_grad
    if process.__qualname__.startswith("SampleInput."):  # the default, which changes nothing
        return op  # type: ignore[no-any-return]
    return lambda *args, **kwargs: process(op(*args, **kwargs))


def seed() -> None:
    """Put every generator that samples and operators draw from at one place."""
    import numpy

    torch.manual_seed(SEED)
    random.seed(SEED)
    numpy.random.seed(SEED)


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

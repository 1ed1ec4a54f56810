"""Trace a function for one set of inputs, and say what to do where that fails."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from aotkit.capture.outputs import Outputs
from aotkit.capture.recipe import Recipe
from aotkit.capture.refusals import EagerOnly
from aotkit.capture.signature import Signature, outcome_in_eager
from aotkit.capture.watching import TensorReads, no_other_randomness
from aotkit.errors import AotkitError, TraceError
from aotkit.passes import recording_source, strides_of, user_line
from aotkit.random import random_state
from aotkit.runtime import collecting_later
from aotkit.stages import Pipeline
from aotkit.timeline import stage
from aotkit.torch_private.aotautograd import trace
from aotkit.torch_private.aotautograd_metadata import Compiled
from aotkit.torch_private.fake_tensors import is_data_dependent, is_foreign_tensor


def traced(
    recipe: Recipe, signature: Signature, inputs: Sequence[Tensor], pipeline: Pipeline, outputs: Outputs,
    reads: TensorReads, ran_in_eager: bool,
) -> Compiled:  # fmt: skip
    """Trace the function and compile its graphs; notes what it returns and reads."""
    owner = getattr(recipe.fn, "__self__", None)
    module = owner if isinstance(owner, nn.Module) else None

    def flat(*tensors: Any) -> list[Any]:
        tensors, seeds = tensors[: len(signature.tensors)], tensors[len(signature.tensors) :]
        with recording_source(module), reads, no_other_randomness(recipe.name), signature.randomness(*seeds):
            reads.inputs = {id(t) for t in tensors}
            returned = signature.run("traced", tensors)
        computed = outputs.flatten(returned, tensors)
        # The first time, nothing is decomposed yet.
        pipeline.strides = pipeline.strides or strides_of(computed)
        return computed

    as_before = torch.set_grad_enabled(torch.is_grad_enabled())  # the function may leave another mode
    with _explained(recipe, signature, ran_in_eager), random_state(), as_before:
        open_sizes = [[recipe.dynamic and is_open for is_open in dims] for dims in (*signature.open_sizes, ())]
        pipeline.lasting = [*(isinstance(t, nn.Parameter) for t in signature.tensors), True]
        pipeline.guarded = True  # by `accepts`
        with stage("trace, cut and compile"), collecting_later():
            return trace(flat, inputs, open_sizes[: len(inputs)], **pipeline.keywords())


@contextmanager
def _explained(recipe: Recipe, signature: Signature, ran_in_eager: bool) -> Iterator[None]:
    """Turn the ways in which tracing fails into errors that say what to do; the function's own errors stay."""
    try:
        yield
    except (AotkitError, EagerOnly):
        raise
    except Exception as e:
        if not ran_in_eager:
            outcome_in_eager(signature)  # if this raises, tracing is not to blame
        where = user_line(e.__traceback__)
        at = f" at {where}" if where else ""
        if is_data_dependent(e):
            raise TraceError(
                f"{recipe.name!r} needs the value of a tensor{at}: its control flow or its shapes depend on data, "
                "which one graph cannot hold. Use capture='dynamo', which splits the function there."
            ) from e
        if is_foreign_tensor(e):
            raise TraceError(
                f"{recipe.name!r} uses a tensor{at} that is neither an argument nor found in its closure, globals or "
                "attributes. Pass it as an argument."
            ) from e
        raise TraceError(
            f"{recipe.name!r} runs in eager, but cannot be traced{at}: {type(e).__name__}: {e}. Use capture='dynamo', "
            "or on_error='eager' to run it uncompiled."
        ) from e

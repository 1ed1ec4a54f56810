"""Random sequences of calls: whatever changes from one to the next, nothing tells compiled and eager apart."""

import contextlib
import warnings

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import aotkit
from tests.agreement import compare
from tests.random_calls import BODIES, CALLS, SURROUNDINGS, Subject, apply_change, finish, inputs

SETTINGS = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    # Every step of a search for a simpler sequence compiles, too.
    "phases": [Phase.generate],
    # The tier is the same for all sequences of a test.
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


# What AOTAutograd cannot trace: mutated inputs that share memory, where autograd sees no views of one tensor.
UNTRACEABLE = "non-differentiable view input mutations|any_leaf=|out of bounds for storage"


def sequence(body, calls):
    """A scenario for `compare`."""

    def scenario(compile):
        subject = Subject()
        f = compile(getattr(subject, body))
        later = []
        for call in calls:
            yield from one_call(f, subject, call, later)
        for outputs, leaves in later:
            yield lambda outputs=outputs, leaves=leaves: finish("backward", outputs, leaves)

    return scenario


def one_call(f, subject, call, later):
    """What a user could look at in one call. It is made twice, so that entries are found again."""
    apply_change(subject, call.change)
    for _ in range(2):
        subject.gain.grad = None
        leaves, a, b = inputs(call)
        torch.manual_seed(call.seed)
        outputs = []
        before = a._version, b._version

        def call_it(a=a, b=b, outputs=outputs):
            with contextlib.ExitStack() as stack:
                for name in call.surroundings:
                    stack.enter_context(SURROUNDINGS[name]())
                try:
                    result = f(a, b, call.number)
                except aotkit.CompileError as e:  # what is not checked may fail in the graph
                    raise e.__cause__ or e from None
            outputs += [y for y in torch.utils._pytree.tree_leaves(result) if isinstance(y, torch.Tensor)]
            return result

        yield call_it
        yield a, b, subject.steps, torch.get_rng_state(), [(y is a, y is b) for y in outputs]
        # In eager, the new value of a mutated input is on the way to the outputs; here it is an output itself.
        unchanged = [x for x, version in zip((a, b), before, strict=True) if x._version == version]
        wanted = [*leaves, *unchanged, subject.gain]
        if call.ending == "later":
            later.append((outputs, wanted))
        else:
            yield lambda outputs=outputs, wanted=wanted: finish(call.ending, outputs, wanted)
            yield lambda outputs=outputs, a=a, b=b: (outputs, a, b)


@pytest.mark.parametrize("body", BODIES)
@settings(max_examples=5, **SETTINGS)
@given(calls=st.lists(CALLS, min_size=1, max_size=5), check=st.booleans())
def test_random_calls(body, calls, check):
    run(body, calls, check)


@pytest.mark.sweep
@pytest.mark.parametrize("body", BODIES)
@settings(max_examples=500, **SETTINGS)
@given(calls=st.lists(CALLS, min_size=1, max_size=8), check=st.booleans())
def test_many_random_calls(body, calls, check):
    run(body, calls, check)


def run(body, calls, check):
    with warnings.catch_warnings():
        if body == "mutating":
            warnings.filterwarnings("ignore", f"(?s).*({UNTRACEABLE})", aotkit.EagerFallbackWarning)
        # The order of a sum depends on strides, so gradients of what was broadcast differ by rounding.
        on_error = "eager" if body == "mutating" else "raise"
        compare(sequence(body, calls), check, eager=None, exact=False, on_error=on_error)

"""What functions do to the memory of their tensors: every way of capture gives eager's result, or refuses."""

import warnings

import pytest
import torch

import aotkit

HELD = {"tensor": torch.zeros(6)}


def resized_to_nothing(x):
    y = x * x
    x.untyped_storage().resize_(0)
    return y


def freed_and_taken_again(x):
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(24)
    with torch.no_grad():
        x.fill_(3.0)
    return x + 1


def grown_storage(x):
    x.untyped_storage().resize_(1000)
    return x * 2


def freed_while_held(x):
    HELD["tensor"].untyped_storage().resize_(0)
    return x * 2


def replaced_storage(x):
    x.set_(torch.ones(6))
    return x * 2


def replaced_held(x):
    HELD["tensor"].set_(x)
    return HELD["tensor"] * 2


def part_of_another_storage(x, y):
    x.set_(y.untyped_storage(), 0, (3,), (2,))
    return x * 2


def replaced_data(x, y):
    x.data = y
    x.mul_(2)
    return x + 1


def replaced_data_of_held(x):
    HELD["tensor"].data = x * 3
    return HELD["tensor"] + x


def own_tensor_over_input(x):
    y = torch.zeros(6)
    y.data = x
    y.mul_(2)
    return x + y


def larger(x):
    x.resize_(12).fill_(1.0)
    return x * 2


def larger_as_output(x, y):
    y.resize_(0)
    torch.add(torch.ones(40), 1, out=y)
    return x * y.sum()


def as_integers(x):
    x.view(torch.int32).add_(1)
    return x * 2


def held_as_integers(x):
    HELD["tensor"].view(torch.int32).bitwise_and_(0x7FF00000)
    return HELD["tensor"] * x


def filled_storage(x):
    x.untyped_storage().fill_(0)
    return x + 1


def copied_storage(x, y):
    x.untyped_storage().copy_(y.untyped_storage())
    return x * 2


def one_byte(x):
    x.untyped_storage()[3] = 64
    return x * x.untyped_storage()[3]


def own_storage(x):
    storage = torch.UntypedStorage(24)
    storage.fill_(0)
    return torch.empty(0).set_(storage, 0, (6,), (1,)) + x


def result_over_own_storage(x):
    y = x * 2
    y.untyped_storage().resize_(0)
    y.untyped_storage().resize_(24)
    return y.fill_(1.0)


def moved_to_shared_memory(x):
    x.share_memory_()
    return x * (2 if x.is_shared() else 3)


def through_dlpack(x):
    y = torch.from_dlpack(x)
    y.mul_(2)
    return x + 1


def through_numpy(x):
    y = torch.from_numpy(x.numpy()[2:])
    y.mul_(2)
    return x + 1


FUNCTIONS = [
    resized_to_nothing, freed_and_taken_again, grown_storage, freed_while_held, replaced_storage, replaced_held,
    part_of_another_storage, replaced_data, replaced_data_of_held, own_tensor_over_input, larger, larger_as_output,
    as_integers, held_as_integers, filled_storage, copied_storage, one_byte, own_storage, result_over_own_storage,
    moved_to_shared_memory, through_dlpack, through_numpy,
]  # fmt: skip


def described(tensor):
    nbytes = tensor.untyped_storage().nbytes()
    values = tensor.tolist() if nbytes >= tensor.nbytes else "freed"
    return values, tensor.stride(), nbytes, tensor.is_shared()


def outcome(fn, count, grad):
    """The result, and everything that the function can reach, afterwards."""
    HELD["tensor"] = torch.arange(6.0)
    inputs = [torch.arange(6.0) + i for i in range(count)]
    inputs[0].requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        result = fn(*inputs)
    return [described(t.detach()) for t in (result, *inputs, HELD["tensor"])]


@pytest.mark.thinned
@pytest.mark.filterwarnings(
    "ignore::aotkit.EagerCallWarning",
    "ignore:Dynamo does not know how to trace:UserWarning",
    "ignore:The .grad attribute:UserWarning",
)
@pytest.mark.parametrize("capture", ["auto", "aot", "dynamo"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_eagers_result_or_a_refusal(fn, capture):
    count = fn.__code__.co_argcount
    compiled = aotkit.compile(fn, backend="nop", capture=capture)
    for grad in (False, True):
        try:
            wanted = outcome(fn, count, grad)
        except (RuntimeError, BufferError):  # eager refuses to mutate a leaf, or to export what requires gradients
            continue
        for _ in range(2):  # a refusal is one for good
            try:
                found = outcome(compiled, count, grad)
            except (aotkit.TraceError, aotkit.MismatchError):
                continue
            assert found == wanted


@pytest.mark.parametrize("capture", ["auto", "aot", "dynamo"])
def test_a_function_that_frees_memory_runs_eagerly_with_the_reason(capture):
    compiled = aotkit.compile(resized_to_nothing, backend="nop", capture=capture)
    with pytest.warns(aotkit.EagerCallWarning, match="resizes the storage of"):
        found = outcome(compiled, 1, False)
    assert found == outcome(resized_to_nothing, 1, False)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("capture", ["auto", "aot", "dynamo"])
@pytest.mark.parametrize("first", ["apart", "shared"])
def test_arguments_that_share_memory_by_storages_of_their_own(first, capture, check):
    def scaled(x, y):
        y.mul_(2)
        return x[2:] + y

    def inputs(sharing):
        x = torch.arange(6.0)
        return x, torch.from_numpy(x.numpy()[2:]) if sharing == "shared" else torch.ones(4)

    compiled = aotkit.compile(scaled, backend="nop", capture=capture, check=check)
    for sharing in (first, "shared", "apart", "shared"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", aotkit.EagerCallWarning)
            found = compiled(*inputs(sharing))
        torch.testing.assert_close(found, scaled(*inputs(sharing)))

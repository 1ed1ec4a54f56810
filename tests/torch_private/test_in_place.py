"""A tensor gets the memory of another one only if nothing else refers to that."""

import gc

import numpy as np
import pytest
import torch

from aotkit.torch_private.tensors import in_place

SIZE, STRIDES = (2, 3), (3, 1)


def test_a_tensor_that_nothing_else_has_gives_its_memory():
    values = [torch.arange(6.0)]
    address = values[0].data_ptr()
    made = in_place()(values, (0,), SIZE, STRIDES)
    values.clear()
    assert made.data_ptr() == address
    torch.testing.assert_close(made, torch.arange(6.0).view(2, 3))
    assert not made._is_view()


def test_the_first_that_nothing_else_has_is_taken():
    values = [torch.zeros(6), torch.ones(6), torch.ones(6)]
    held = values[0]
    made = in_place()(values, (0, 1, 2), SIZE, STRIDES)
    assert made.data_ptr() == values[1].data_ptr() != held.data_ptr()
    # Its memory is taken now.
    assert in_place()(values, (0, 1, 2), SIZE, STRIDES).data_ptr() == values[2].data_ptr()
    assert in_place()(values, (0, 1), SIZE, STRIDES) is None


HOLDERS = {
    "name": lambda x: x,
    "list": lambda x: [x],
    "view": lambda x: x.view(3, 2),
    "part": lambda x: x[2:],
    "detached": lambda x: x.detach(),
    "storage": lambda x: x.untyped_storage(),
    "array": lambda x: x.numpy(),
    "capsule": lambda x: x.__dlpack__(),
    "autograd": lambda x: torch.ones(6, requires_grad=True) * x,
    "lazy copy": torch._lazy_clone,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_who_else_may_read_it_keeps_it(holder):
    values = [torch.arange(6.0)]
    held = HOLDERS[holder](values[0])
    assert in_place()(values, (0,), SIZE, STRIDES) is None
    del held
    gc.collect()
    if holder not in ("storage", "array", "lazy copy"):  # of which torch does not tell when they are gone
        assert in_place()(values, (0,), SIZE, STRIDES) is not None


def test_the_same_tensor_twice_is_two_references():
    x = torch.arange(6.0)
    values = [x, x]
    del x
    assert in_place()(values, (0, 1), SIZE, STRIDES) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.from_numpy(np.zeros(6, np.float32)),  # the array may be in use
        lambda: torch.frombuffer(bytearray(24), dtype=torch.float32),
        lambda: torch.zeros(8),
        lambda: torch.zeros(8)[:6],
        lambda: torch.zeros(6).share_memory_(),
        lambda: torch.zeros(6, dtype=torch.complex64).conj(),
    ],
    ids=["array", "buffer", "more", "a part", "shared", "conjugate"],
)
def test_memory_of_another_size_or_of_others_is_left_alone(make):
    assert in_place()([make()], (0,), SIZE, STRIDES) is None


def test_it_has_no_gradient_and_is_nobody_elses():
    values = [torch.ones(6, requires_grad=True) * 2]
    made = in_place()(values, (0,), SIZE, STRIDES)
    assert not made.requires_grad
    assert made.grad_fn is None


def test_without_the_library_nothing_is_overwritten(monkeypatch):
    monkeypatch.setenv("AOTKIT_NATIVE", "0")
    assert in_place()([torch.zeros(6)], (0,), SIZE, STRIDES) is None

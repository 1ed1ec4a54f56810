"""Fake tensors: sizes and strides without memory, and what stands for a value while a function is traced."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.fx import GraphModule

from aotkit.torch_private.dispatch import AsInEager


def outside_fake_mode() -> Any:
    """Compilers run under this, so that they can do real tensor work."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


@contextmanager
def outside_tracing() -> Iterator[None]:
    """Partitioners compute with real tensors under this. Tracing would send each operation through Python."""
    with outside_fake_mode(), AsInEager():
        yield


def is_traced(value: Any) -> bool:
    """Whether a value inside a traced function is one that the graph computes."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(value, FunctionalTensor | torch.SymInt | torch.SymFloat | torch.SymBool)


def fake_mode(*, allow_non_fake_inputs: bool = False) -> Any:
    """Tensors that are made under this have shapes, strides and devices, but no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=allow_non_fake_inputs)


def fixed_fake_mode() -> Any:
    """The same for tracing; with an environment of shapes, without which Inductor keeps nothing."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)


def fake_tensors() -> AbstractContextManager[Any]:
    """The same, where real tensors may take part."""
    return fake_mode(allow_non_fake_inputs=True)  # type: ignore[no-any-return]


def like_meta(tensor: Tensor, device: torch.device, mode: Any) -> Tensor:
    """A fake tensor of a mode that is all that a tensor on the device "meta" is, but on another device."""
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor(mode, tensor, device)


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor has no memory."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def tensor_metadata(value: Tensor) -> Any:
    """What tracing notes of a tensor on the node that computes it."""
    from torch._subclasses.fake_tensor import extract_tensor_metadata

    return extract_tensor_metadata(value)


def propagate(gm: GraphModule, inputs: Sequence[Tensor]) -> tuple[Any, list[Tensor]]:
    """Give each node of a graph a fake tensor, views over the memory of their bases; return (mode, fake inputs)."""
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    mode = fake_mode(allow_non_fake_inputs=True)  # constants of a graph are real tensors
    fakes: list[Tensor] = [mode.from_tensor(x, static_shapes=True) for x in inputs]
    FakeTensorProp(gm, mode).propagate_dont_convert_inputs(*fakes)
    return mode, fakes


def as_traced(tensors: Sequence[Tensor], example_inputs: Sequence[Any]) -> list[Any]:
    """What stands for these tensors where stand-ins for others are traced."""
    mode = detect_fake_mode(example_inputs)
    return [t if mode is None else mode.from_tensor(t, static_shapes=True) for t in tensors]


def mode_of(values: Sequence[Any]) -> AbstractContextManager[Any]:
    """The mode of fake tensors, to compute more of them."""
    return detect_fake_mode(values) or fake_mode()


def is_data_dependent(error: Exception) -> bool:
    """Whether tracing failed because Python code asked for the value of a tensor."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
    return isinstance(error, kinds)


def is_foreign_tensor(error: Exception) -> bool:
    """Whether tracing failed because a real tensor met a fake one."""
    return "Please convert all Tensors to FakeTensors first" in str(error)

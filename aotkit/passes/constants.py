"""Small tensors that tracing makes of numbers in the user's code, `torch.tensor([0.5])`: exact, as data."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.torch_private.fake_tensors import is_fake, outside_fake_mode

MOST_BYTES = 1024
COPIES = (torch.ops.aten.lift_fresh_copy.default,)


def constant_of(gm: GraphModule, node: Node) -> Tensor | None:
    """The tensor that a `get_attr` node holds, if it is small and the graph reads copies of it alone.

    None for what may be the user's own tensor: its values may be others at the next call.
    """
    held: Any = getattr(gm, str(node.target), None)
    is_plain = type(held) is Tensor and not is_fake(held) and held.layout is torch.strided and not held.is_meta
    if not is_plain or any(user.target not in COPIES for user in node.users):
        return None
    is_small = held.numel() * held.element_size() <= MOST_BYTES and held.is_contiguous() and not held.is_quantized
    return held if is_small and not (held.requires_grad or held.is_conj() or held.is_neg()) else None


def constant_data(constant: Tensor) -> list[Any]:
    """Dtype, device, shape, and the bytes as hexadecimal digits."""
    with outside_fake_mode(), torch.no_grad():
        values: list[int] = constant.cpu().flatten().view(torch.uint8).tolist()
    dtype = str(constant.dtype).removeprefix("torch.")
    return [dtype, str(constant.device), [*constant.shape], bytes(values).hex()]


def constant_from(dtype: torch.dtype, device: torch.device, shape: Sequence[int], digits: str) -> Tensor:
    """The tensor."""
    values = torch.tensor([*bytes.fromhex(digits)], dtype=torch.uint8, device="cpu")
    return values.view(dtype).view([*shape]).to(device)

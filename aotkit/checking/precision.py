"""In which precision products and convolutions of float32 really run, by torch's own switches."""

from typing import Any

import torch

aten = torch.ops.aten
# Bits of the fraction of a number in [1, 2), from which the distance to the next one follows.
EPS = {"tf32": 2.0**-10, "bf16": 2.0**-7}
# cuDNN may choose algorithms that transform what they read and add it up first, which cancels.
WINOGRAD = 2.0**-15
CONVOLUTIONS = frozenset(
    {
        aten.convolution,
        aten._convolution,
        aten.convolution_backward,
        aten.cudnn_convolution,
        aten.cudnn_convolution_transpose,
        aten.mkldnn_convolution,
        aten._slow_conv2d_forward,
    }
)
RECURRENT = frozenset({aten._cudnn_rnn, aten._cudnn_rnn_backward, aten.mkldnn_rnn_layer})
PRODUCTS = frozenset(
    {
        aten.mm,
        aten.bmm,
        aten.addmm,
        aten.baddbmm,
        aten.addbmm,
        aten.mv,
        aten.addmv,
        aten.dot,
        aten.matmul,
        aten.linear,
        aten.linear_backward,
        aten.einsum,
        aten._scaled_dot_product_efficient_attention,
        aten._scaled_dot_product_efficient_attention_backward,
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    }
)


def operand_eps(func: Any, device: torch.device) -> float:
    """The relative precision in which an operator reads values of float32; 0 where it reads all of their digits."""
    packet = getattr(func, "overloadpacket", None)
    if packet in PRODUCTS:
        kind = "matmul"
    elif packet in CONVOLUTIONS:
        kind = "conv"
    elif packet in RECURRENT:
        kind = "rnn"
    else:
        return 0.0
    if device.type == "cuda":
        backend: Any = torch.backends.cuda.matmul if kind == "matmul" else getattr(torch.backends.cudnn, kind)
    elif device.type == "cpu":
        backend = getattr(torch.backends.mkldnn, kind)
    else:
        return 0.0
    eps = EPS.get(backend.fp32_precision, 0.0)
    return max(eps, WINOGRAD) if kind == "conv" and device.type == "cuda" else eps

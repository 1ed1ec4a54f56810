"""What kind of kernel an operator is to an estimate of time: whether it fuses."""

from torch.fx import Node

from aotkit.inspection import packet_name

# Kernels of libraries, and those that no pointwise kernel runs into: besides all that does floating-point work.
POOLING = "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices \
    max_pool3d_with_indices_backward _low_memory_max_pool_with_offsets avg_pool2d avg_pool2d_backward \
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward"
SCATTERING = "scatter scatter_add scatter_reduce index_put _unsafe_index_put index_add embedding_dense_backward"
ORDERING = "sort topk kthvalue median argsort searchsorted multinomial nonzero"
SCANS = "cumsum cumprod cummax cummin logcumsumexp"
OTHERS = "upsample_bilinear2d upsample_bilinear2d_backward upsample_nearest2d_backward _embedding_bag \
    mkldnn_rnn_layer _cudnn_rnn _fft_r2c _fft_c2r _fft_c2c"
BARRIERS = frozenset(" ".join([POOLING, SCATTERING, ORDERING, SCANS, OTHERS]).split())


def is_barrier(node: Node, flops: int) -> bool:
    """Whether a node is a kernel of its own, which reads its inputs from memory and writes its results there.

    Args:
        flops: its floating-point operations.
    """
    return flops > 0 or packet_name(node) in BARRIERS or "attention" in packet_name(node)

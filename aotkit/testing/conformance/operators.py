"""Requirements on single operators: each on samples of ordinary, empty, scalar, broadcast and strided tensors."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aotkit.testing.case import CPU, Case, Inputs
from aotkit.testing.conformance.compare import equals_eager
from aotkit.testing.conformance.requirements import Requirements

Samples = Callable[[Inputs], Mapping[str, tuple[Any, ...]]]


def _one(new: Inputs) -> Mapping[str, tuple[Any, ...]]:
    return {
        "plain": (new.normal(3, 4),),
        "empty": (new.normal(0, 4),),
        "scalar": (new.normal(),),
        "transposed": (new.normal(4, 3).t(),),
        "strided": (new.normal(6, 4)[::2],),
    }


def _two(new: Inputs) -> Mapping[str, tuple[Any, ...]]:
    return {
        "plain": (new.normal(3, 4), new.normal(3, 4)),
        "broadcast": (new.normal(3, 1), new.normal(2, 1, 4)),
        "scalar": (new.normal(3, 4), new.normal()),
        "empty": (new.normal(0, 4), new.normal(4)),
        "strided": (new.normal(4, 3).t(), new.normal(6, 4)[::2]),
    }


def _matrix(new: Inputs) -> Mapping[str, tuple[Any, ...]]:
    """For operators that need a dimension of some size."""
    return {
        "plain": (new.normal(3, 4),),
        "cube": (new.normal(2, 3, 4),),
        "transposed": (new.normal(4, 3).t(),),
        "strided": (new.normal(6, 4)[::2],),
        "one_row": (new.normal(1, 4),),
    }


def _two_matrices(new: Inputs) -> Mapping[str, tuple[Any, ...]]:
    return {
        "plain": (new.normal(3, 4), new.normal(4, 5)),
        "transposed": (new.normal(4, 3).t(), new.normal(5, 4).t()),
        "empty": (new.normal(0, 4), new.normal(4, 5)),
        "nothing_summed": (new.normal(3, 0), new.normal(0, 5)),
        "one": (new.normal(1, 1), new.normal(1, 1)),
    }


def _rows_and_indices(new: Inputs) -> Mapping[str, tuple[Any, ...]]:
    return {
        "plain": (new.normal(5, 4), new.integers(5, 3, 4)),
        "transposed": (new.normal(4, 5).t(), new.integers(5, 4, 3).t()),
        "empty": (new.normal(5, 4), new.integers(5, 0, 4)),
    }


def _image(new: Inputs) -> Mapping[str, tuple[Any, ...]]:
    return {
        "plain": (new.normal(2, 3, 6, 6), new.normal(4, 3, 3, 3)),
        "channels_last": (new.normal(2, 3, 6, 6).to(memory_format=torch.channels_last), new.normal(4, 3, 3, 3)),
        "one_pixel": (new.normal(1, 3, 4, 4)[:, :, ::1, :], new.normal(1, 3, 4, 4)),
    }


def _positive(x: Tensor) -> Tensor:
    return x.abs() + 0.5


POINTWISE: dict[str, Callable[..., Any]] = {
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "floor": torch.floor,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
    "log": lambda x: _positive(x).log(),
    "log1p": lambda x: _positive(x).log1p(),
    "neg": torch.neg,
    "pow.Scalar": lambda x: x**3,
    "reciprocal": lambda x: _positive(x).reciprocal(),
    "relu": torch.relu,
    "rsqrt": lambda x: _positive(x).rsqrt(),
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sin": torch.sin,
    "softplus": F.softplus,
    "sqrt": lambda x: _positive(x).sqrt(),
    "tanh": torch.tanh,
    "clone": torch.clone,
    "zeros_like": lambda x: x + torch.zeros_like(x),
    "sum": torch.sum,
    "reshape": lambda x: x.reshape(-1) * 2,
}

PAIRS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "atan2": torch.atan2,
    "div": lambda x, y: x / _positive(y),
    "eq": torch.eq,
    "fmod": lambda x, y: torch.fmod(x, _positive(y)),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "logaddexp": torch.logaddexp,
    "maximum": torch.maximum,
    "mul": torch.mul,
    "pow.Tensor": lambda x, y: _positive(x) ** y,
    "where": lambda x, y: torch.where(x > y, x * 2, y),
    "expand": lambda x, y: (x + y).expand(2, *(x + y).shape),
    "mse_loss": lambda x, y: (x - y).square().sum(),
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.5),
}

MATRICES: dict[str, Callable[..., Any]] = {
    "amax": lambda x: x.amax(-1),
    "any": lambda x: (x > 1).any(-1),
    "argmax": lambda x: x.argmax(-1),
    "cat": lambda x: torch.cat([x, x * 2], -1),
    "constant_pad_nd": lambda x: F.pad(x, (1, 2)),
    "cumsum": lambda x: x.cumsum(-1),
    "diagonal": lambda x: x.diagonal(0, -2, -1) * 2,
    "flip": lambda x: x.flip(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "max.dim": lambda x: x.max(-1),
    "mean": lambda x: x.mean(-1),
    "native_layer_norm": lambda x: F.layer_norm(x, (4,)),
    "permute": lambda x: x.transpose(-1, 0).sin(),
    "prod": lambda x: x.prod(-1),
    "roll": lambda x: x.roll(1, -1),
    "select": lambda x: x[..., 1] * 3,
    "slice": lambda x: x[..., 1:3] * 3,
    "slice.step": lambda x: x[..., ::2].cos(),
    "softmax": lambda x: x.softmax(-1),
    "sort": lambda x: x.sort(-1),
    "stack": lambda x: torch.stack([x, x.sin()], 1),
    "topk": lambda x: x.topk(2, -1),
    "triu": lambda x: x.triu(1),
    "unbind": lambda x: [p * 2 for p in x.unbind(-1)],
    "var": lambda x: x.var(-1),
    "view": lambda x: (x * 2).flatten().view(-1, 2),
    "masked_fill": lambda x: x.masked_fill(x > 0, -1.0),
    "index": lambda x: x[..., [0, 2]],
    "unfold": lambda x: x.unfold(-1, 2, 1) * 2,
}

PRODUCTS: dict[str, Callable[..., Any]] = {
    "mm": torch.mm,
    "matmul": lambda x, w: x[None] @ w,
    "bmm": lambda x, w: torch.bmm(x[None], w[None]),
    "addmm": lambda x, w: torch.addmm(w.sum(0), x, w, beta=0.5),
    "linear": lambda x, w: F.linear(x, w.t(), w.sum(0)),
    "einsum": lambda x, w: torch.einsum("ij,jk->ki", x, w),
}

INDEXED: dict[str, Callable[..., Any]] = {
    "gather": lambda x, i: x.gather(0, i),
    "scatter": lambda x, i: x.scatter(0, i, 2.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i, x[: i.shape[0]].sin()),
    "index_select": lambda x, i: x.index_select(0, i.flatten()),
    "embedding": lambda x, i: F.embedding(i, x),
    "index.Tensor": lambda x, i: x[i],
    "index_put": lambda x, i: x.index_put((i,), torch.ones((), device=x.device), accumulate=True),
}

IMAGES: dict[str, Callable[..., Any]] = {
    "convolution": F.conv2d,
    "convolution.padded": lambda x, w: F.conv2d(x, w, padding=1, stride=2),
    "max_pool2d": lambda x, w: F.max_pool2d(x, 2),
    "avg_pool2d": lambda x, w: F.avg_pool2d(x, 2),
    "native_group_norm": lambda x, w: F.group_norm(x, 3),
    "upsample_nearest2d": lambda x, w: F.interpolate(x, scale_factor=2),
    "cross_entropy": lambda x, w: F.cross_entropy(x, x.detach().argmax(1)),
}


def _case(name: str, operator: Callable[..., Any], samples: Samples) -> Case:
    def on_each(made: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """All samples in one function, so that each operator compiles once."""
        return {sample: operator(*arguments) for sample, arguments in made.items()}

    return Case.of(f"aten.{name}", on_each, lambda new: (samples(new),))


OPERATORS = Requirements("op")
for _table, _samples in (
    (POINTWISE, _one),
    (PAIRS, _two),
    (MATRICES, _matrix),
    (PRODUCTS, _two_matrices),
    (INDEXED, _rows_and_indices),
    (IMAGES, _image),
):
    _names = ", ".join(_samples(Inputs(CPU, 0)))
    OPERATORS.add_cases(
        f"The operator gives eager's values and gradients on samples, in this order: {_names}.",
        [_case(name, operator, _samples) for name, operator in _table.items()],
        equals_eager,
    )

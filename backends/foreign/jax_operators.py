"""ATen's operators, as `spelling.py` leaves them, in terms of `jax.numpy`."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from aotkit.backends.foreign import operators as ops

aten = torch.ops.aten
Table = dict[Any, Callable[..., Any]]


@functools.cache
def dtypes() -> dict[torch.dtype, Any]:
    """JAX's types."""
    import jax.numpy as jnp

    return {dtype: jnp.dtype(str(dtype).removeprefix("torch.")) for dtype in ops.DTYPES}


@functools.cache
def table() -> Table:
    """Operator -> function of arrays, which may give another type: results are converted to ATen's."""
    return {**_pointwise(), **_reductions(), **_shapes()}


def _pointwise() -> Table:
    import jax
    import jax.numpy as jnp
    from jax import lax

    both = {
        **{name: getattr(jnp, f) for name, f in _RELATIONS.items()},
        **{"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.true_divide},
        **{name: getattr(jnp, name) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    }
    one = {
        **{name: getattr(jnp, name) for name in _SAME_NAME},
        **{"erf": lax.erf, "rsqrt": lax.rsqrt, "sigmoid": jax.nn.sigmoid, "neg": jnp.negative},
        "bitwise_not": jnp.invert,
        "clone": jnp.copy,
    }
    return {
        **{getattr(getattr(aten, name), o): f for name, f in both.items() for o in ("Scalar", "Tensor")},
        **{getattr(aten, name).default: f for name, f in one.items()},
        aten.__rshift__.Scalar: jnp.right_shift,
        aten.__lshift__.Scalar: jnp.left_shift,
        aten.where.self: jnp.where,
        ops.CAST: _cast,
        aten.full.default: lambda shape, value, dtype, device: jnp.full(shape, value, dtypes()[dtype]),
        aten.arange.start_step: lambda *range, dtype, device: jnp.arange(*range, dtype=dtypes()[dtype]),
    }


def _cast(x: Any, dtype: torch.dtype) -> Any:
    import jax.numpy as jnp

    if x.dtype == bool and dtype.is_floating_point:
        # XLA takes a product with a truth value that is converted for a choice, and infinity times 0 for 0.
        return jnp.where(x, jnp.ones_like(x, dtypes()[dtype]), jnp.zeros_like(x, dtypes()[dtype]))
    return x.astype(dtypes()[dtype])


_RELATIONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
_SAME_NAME = (
    *("abs", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sqrt", "reciprocal", "floor", "ceil"),
    *("trunc", "logical_and", "logical_or", "logical_not"),
)


def _reductions() -> Table:
    import jax.numpy as jnp

    def over(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, dims, keepdim=False: function(x, axis=tuple(dims), keepdims=keepdim)

    return {
        aten.sum.dim_IntList: over(jnp.sum),
        aten.mean.dim: over(jnp.mean),
        aten.amax.default: over(jnp.max),
        aten.amin.default: over(jnp.min),
        aten.any.dim: lambda x, dim, keepdim=False: jnp.any(x, axis=dim, keepdims=keepdim),
    }


def _shapes() -> Table:
    import jax.numpy as jnp
    from jax import lax

    return {
        aten.view.default: jnp.reshape,
        aten.expand.default: jnp.broadcast_to,
        aten.permute.default: jnp.transpose,
        aten.slice.Tensor: lambda x, dim, *range: lax.slice_in_dim(x, *range, axis=dim),
        aten.select.int: lambda x, dim, at: lax.index_in_dim(x, at, dim, keepdims=False),
        aten.cat.default: lambda parts, dim: jnp.concatenate(parts, dim),
        aten.gather.default: _gathered,
    }


def _gathered(x: Any, dim: int, index: Any) -> Any:
    """The index may be smaller than the array in the other dimensions, of which it takes the first places."""
    import jax.numpy as jnp

    sizes = tuple(slice(n if d != dim else None) for d, n in enumerate(index.shape))
    return jnp.take_along_axis(x[sizes], index, dim) if x.ndim else x.reshape(index.shape)

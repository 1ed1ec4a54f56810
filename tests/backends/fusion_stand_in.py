"""Stands for the module `nvfuser_direct`: its operations compute with torch at once, and hold to nvFuser's rules.

Those are: no half precision in arithmetic, no Python number without a type, operands of one type, dimensions that
exist, reshapes that keep the number of elements. A definition is recorded, and runs on each call.
"""

import enum

import torch

DataType = enum.Enum("DataType", ["Double", "Float", "Half", "BFloat16", "Int", "Int32", "Bool"])
TYPES = {
    DataType.Double: torch.float64,
    DataType.Float: torch.float32,
    DataType.Half: torch.float16,
    DataType.BFloat16: torch.bfloat16,
    DataType.Int: torch.int64,
    DataType.Int32: torch.int32,
    DataType.Bool: torch.bool,
}
NAMES = {dtype: name for name, dtype in TYPES.items()}
HALF = (torch.float16, torch.bfloat16)
UNARY = [
    "abs", "neg", "sign", "floor", "ceil", "round", "trunc", "relu", "reciprocal", "sqrt", "rsqrt", "sigmoid", "exp",
    "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "isnan", "isinf", "bitwise_not",
    "logical_not",
]  # fmt: skip
BINARY = [
    "add", "sub", "mul", "maximum", "minimum", "atan2", "remainder", "fmod", "pow", "eq", "ne", "lt", "le", "gt",
    "ge", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "logical_and",
    "logical_or",
]  # fmt: skip
ON_INTEGERS = {"div", "bitwise_left_shift", "bitwise_right_shift"}
FLOATING_ALONE = {*UNARY, "truediv", "fmod", "remainder", "pow", "atan2"} - {
    *("abs", "neg", "sign", "bitwise_not", "logical_not")
}


class Value:
    """A tensor of a definition: what it is on the inputs of the definition's own, and how it is computed."""

    def __init__(self, compute, *operands):
        self.compute, self.operands = compute, operands
        self.like = compute(*(x.like for x in operands))

    def dtype(self):
        return NAMES[self.like.dtype]

    @property
    def ndim(self):
        return self.like.dim()


class Scalar(Value):
    """A constant with a type."""


def result(name, compute, *operands):
    for x in operands:
        assert isinstance(x, Value), f"{name} of {x!r}, which has no type"
    return (Scalar if all(isinstance(x, Scalar) for x in operands) else Value)(compute, *operands)


def arithmetic(name, function):
    def operation(*operands):
        types = {x.like.dtype for x in operands if isinstance(x, Value)}
        assert len(types) == 1, f"{name} of {types}"
        (dtype,) = types
        assert dtype not in HALF, f"{name} in {dtype}"
        assert name not in FLOATING_ALONE or dtype.is_floating_point, f"{name} in {dtype}"
        assert name not in ON_INTEGERS or dtype in (torch.int32, torch.int64), f"{name} in {dtype}"
        computed = result(name, function, *operands)
        assert computed.like.dtype in (dtype, torch.bool), f"{name} gives {computed.like.dtype}"
        return computed

    return staticmethod(operation)


def reduction(function):
    def operation(x, dims, keepdim, **options):
        assert x.like.dtype not in HALF
        assert dims, "a reduction over nothing"
        assert all(0 <= d < x.ndim for d in dims)
        return result("reduction", lambda t: function(t, dims, keepdim, **options), x)

    return staticmethod(operation)


def prod(t, dims, keepdim):
    for d in sorted(dims, reverse=True):
        t = t.prod(d, keepdim=keepdim)
    return t


class Operations:
    """`fd.ops`."""

    add, sub, mul = (arithmetic(n, getattr(torch, n)) for n in ("add", "sub", "mul"))
    truediv = arithmetic("truediv", torch.true_divide)
    div = arithmetic("div", lambda x, y: torch.div(x, y, rounding_mode="trunc"))
    silu = arithmetic("silu", torch.nn.functional.silu)
    sum = reduction(lambda t, dims, keepdim: t.sum(dims, keepdim=keepdim))
    max = reduction(lambda t, dims, keepdim: t.amax(dims, keepdim=keepdim))
    min = reduction(lambda t, dims, keepdim: t.amin(dims, keepdim=keepdim))
    prod = reduction(prod)
    var = reduction(lambda t, dims, keepdim, correction: t.var(dims, correction=correction, keepdim=keepdim))

    @staticmethod
    def var_mean(x, dims, correction, keepdim):
        assert x.like.dtype not in HALF
        both = [lambda t, i=i: torch.var_mean(t, dims, correction=correction, keepdim=keepdim)[i] for i in range(2)]
        return tuple(result("var_mean", f, x) for f in both)

    @staticmethod
    def cast(x, to):
        return result("cast", lambda t: t.to(TYPES[to]), x)

    @staticmethod
    def set(x):
        # nvFuser returns its inputs as such outputs.
        return result("set", lambda t: t.view(t.shape), x)

    @staticmethod
    def where(condition, x, y):
        assert condition.like.dtype is torch.bool
        assert x.like.dtype is y.like.dtype
        assert x.like.dtype not in HALF
        return result("where", torch.where, condition, x, y)

    @staticmethod
    def full(shape, value, to):
        assert isinstance(value, Scalar)
        assert value.dtype() is to
        return Value(lambda: torch.full(shape, value.like.item(), dtype=TYPES[to]))

    @staticmethod
    def iota(length, start, step, to):
        assert length.dtype() is DataType.Int
        assert start.dtype() is step.dtype() is to
        n, first, by = (x.like.item() for x in (length, start, step))
        return Value(lambda: torch.arange(n, dtype=TYPES[to]) * by + first)

    @staticmethod
    def reshape(x, shape):
        assert x.ndim
        assert shape
        assert x.like.numel() == torch.Size(shape).numel()
        return result("reshape", lambda t: t.reshape(shape), x)

    @staticmethod
    def permute(x, dims):
        assert sorted(dims) == list(range(x.ndim))
        return result("permute", lambda t: t.permute(dims), x)

    @staticmethod
    def broadcast(x, flags):
        assert flags.count(False) == x.ndim
        return result("broadcast", lambda t: t[tuple(None if new else slice(None) for new in flags)], x)

    @staticmethod
    def broadcast_in_dim(x, shape, dims):
        assert len(dims) == x.ndim
        sizes = [1] * len(shape)
        for d, size in zip(dims, x.like.shape, strict=True):
            sizes[d] = size
        return result("broadcast_in_dim", lambda t: t.reshape(sizes).expand(shape), x)

    @staticmethod
    def squeeze(x, dims):
        assert dims
        assert all(x.like.shape[d] == 1 for d in dims)
        return result("squeeze", lambda t: t.squeeze(dims), x)

    @staticmethod
    def slice(x, starts, ends):
        assert all(0 <= a <= b <= n for a, b, n in zip(starts, ends, x.like.shape, strict=True))
        return result("slice", lambda t: t[tuple(map(slice, starts, ends))], x)

    @staticmethod
    def cat(values, dim):
        assert len(values) > 1
        assert len({x.like.dtype for x in values}) == 1
        return result("cat", lambda *ts: torch.cat(ts, dim), *values)

    @staticmethod
    def pad(x, widths, value):
        assert isinstance(value, Scalar)
        assert value.like.dtype is x.like.dtype
        return result("pad", lambda t: torch.nn.functional.pad(t, widths, value=value.like.item()), x)

    @staticmethod
    def stride_order(x, order):
        def ordered(t):
            strides, step = [0] * t.dim(), 1
            for d in sorted(range(t.dim()), key=order.__getitem__):
                strides[d], step = step, step * t.shape[d]
            return torch.empty_strided(t.shape, strides, dtype=t.dtype).copy_(t)

        assert sorted(order) == list(range(x.ndim))
        return result("stride_order", ordered, x)


for name in UNARY:
    setattr(Operations, name, arithmetic(name, getattr(torch, name)))
for name in BINARY:
    if not hasattr(Operations, name):
        setattr(Operations, name, arithmetic(name, getattr(torch, name)))


class FusionDefinition:
    """Records a definition; `built` counts them."""

    built = 0

    def __enter__(self):
        type(self).built += 1
        self.ops = Operations()
        self.inputs, self.outputs = [], []
        return self

    def __exit__(self, kind, error, traceback):
        assert kind is None, "nvFuser prints an exception that leaves the block"

    def define_tensor(self, *, sizes, strides, dtype, static_sizes, is_cpu):
        assert static_sizes
        assert min(strides, default=0) >= 0
        like = torch.empty_strided(sizes, strides, dtype=TYPES[dtype]).fill_(1)
        self.inputs.append(Value(lambda: like))
        return self.inputs[-1]

    def define_scalar(self, number, dtype):
        assert type(number) in (bool, int, float)
        return Scalar(lambda: torch.tensor(number, dtype=TYPES[dtype]))

    def add_output(self, value):
        self.outputs.append(value)

    def execute(self, inputs, *, device):
        assert len(inputs) == len(self.inputs)
        for given, declared in zip(inputs, self.inputs, strict=True):
            assert given.stride() == declared.like.stride(), "nvFuser would read other elements"
            assert (given.shape, given.dtype) == (declared.like.shape, declared.like.dtype)
        known = dict(zip(self.inputs, inputs, strict=True))
        return [compute(x, known) for x in self.outputs]


def compute(value, known):
    if value not in known:
        known[value] = value.compute(*(compute(x, known) for x in value.operands))
    return known[value]

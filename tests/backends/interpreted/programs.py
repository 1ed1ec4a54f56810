"""Random programs of a few tensors: pointwise chains, reductions, views, parts, and what joins them."""

import functools
import math

import torch
from hypothesis import strategies as st

SIZES = [1, 2, 3, 5, 7, 8, 17]
MOST = 1500  # elements of a tensor
POINTWISE = {
    "sin": torch.sin,
    "tanh": torch.tanh,
    "abs": torch.abs,
    "neg": torch.neg,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "exp": lambda x: torch.exp(-x.abs()),
    "square": lambda x: x * x,
    "half": lambda x: x / 2 + 0.25,
}
JOINING = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum}
REDUCING = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "amin": torch.amin,
    "var": lambda x, dims, keepdim: x.var(dims, correction=0, keepdim=keepdim),
    "logsumexp": torch.logsumexp,
}
KEEPING_ORDER = {"neg", "amax", "amin"}  # round nothing


class Program:
    """A function that is drawn while it runs on float64.

    Attributes:
        inputs: tensors of float32, of several layouts.
        steps: what computes one value more of all that are there.
        values: what they are.
        exact: which of them are not rounded in float32, and may be compared.
    """

    def __init__(self, data):
        self._data = data
        self.inputs = [self._input() for _ in range(self._number(1, 3))]
        self.values, self.exact = [x.double() for x in self.inputs], [True] * len(self.inputs)
        self.steps = []
        for _ in range(self._number(2, 12)):
            getattr(self, self._one_of(["pointwise", "join", "reduce", "view", "part", "whole", "choose", "soften"]))()
        self.pointwise()
        results = self._data.draw(st.sets(st.integers(len(self.inputs), len(self.values) - 1), max_size=2))
        self._results = sorted({*results, len(self.values) - 1})

    def __call__(self, *inputs):
        values = list(inputs)
        for step in self.steps:
            values.append(step(values))
        return tuple(values[i] for i in self._results)

    def _number(self, low, high):
        return self._data.draw(st.integers(low, high))

    def _one_of(self, values):
        return self._data.draw(st.sampled_from(list(values)))

    def _input(self):
        """Dense, transposed, expanded, or a part."""
        shape = self._data.draw(st.lists(st.sampled_from(SIZES), max_size=4).filter(lambda s: math.prod(s) <= MOST))
        match self._one_of(["dense", "transposed", "expanded", "part"]):
            case "transposed":
                order = self._data.draw(st.permutations(range(len(shape))))
                x = torch.randn([shape[d] for d in order])
                return x.permute(sorted(range(len(shape)), key=order.__getitem__))
            case "expanded" if shape:
                d = self._number(0, len(shape) - 1)
                return torch.randn([1 if i == d else n for i, n in enumerate(shape)]).expand(shape)
            case "part" if shape:
                d = self._number(0, len(shape) - 1)
                return torch.randn([n + 3 if i == d else n for i, n in enumerate(shape)]).narrow(d, 2, shape[d])
        return torch.randn(shape)

    def _add(self, function, *operands, exact=False):
        """A step; what gets large is made small by a power of two, to keep what is rounded small."""
        value = function(*(self.values[i] for i in operands))
        scale = 1.0
        if (largest := value.abs().max().item()) > 4:
            scale = 2.0 ** -math.ceil(math.log2(largest))

        def step(values):
            found = function(*(values[i] for i in operands))
            return found * scale if scale != 1 else found

        self.steps.append(step)
        self.values.append(step(self.values))
        self.exact.append(exact and all(self.exact[i] for i in operands))

    def _any(self, test=lambda x: True):
        """The number of a value; of the last one, mostly."""
        found = [i for i, x in enumerate(self.values) if test(x)]
        return self._one_of([*found, *found[-1:]]) if found else None

    # Steps.

    def pointwise(self):
        name = self._one_of(POINTWISE)
        self._add(POINTWISE[name], self._any(), exact=name in KEEPING_ORDER)

    def join(self):
        i = self._any()
        self._add(JOINING[self._one_of(JOINING)], i, self._like(i))

    def _like(self, i):
        """A value with which that value broadcasts."""

        def fits(x):
            pairs = zip(reversed(x.shape), reversed(self.values[i].shape), strict=False)
            if not all(1 in pair or pair[0] == pair[1] for pair in pairs):
                return False
            return x is self.values[i] or torch.broadcast_shapes(x.shape, self.values[i].shape).numel() <= MOST

        return self._any(fits)

    def reduce(self):
        if (i := self._any(lambda x: x.dim() > 0)) is None:
            return
        name, rank = self._one_of(REDUCING), self.values[i].dim()
        dims = sorted(self._data.draw(st.sets(st.integers(0, rank - 1), min_size=1)))
        keepdim = self._data.draw(st.booleans())
        self._add(lambda x: REDUCING[name](x, dims, keepdim=keepdim), i, exact=name in KEEPING_ORDER)

    def soften(self):
        if (i := self._any(lambda x: x.dim() > 0)) is not None:
            dim = self._number(0, self.values[i].dim() - 1)
            self._add(lambda x: x.softmax(dim), i)

    def view(self):
        i = self._any()
        x = self.values[i]
        rank, ways = x.dim(), ["unsqueeze", "expand"]
        ways += ["permute", "squeeze", "split"] * (rank > 0) + ["flatten"] * (rank > 1)
        match self._one_of(ways):
            case "permute":
                order = self._data.draw(st.permutations(range(rank)))
                function = functools.partial(torch.permute, dims=order)
            case "squeeze":
                function = torch.squeeze
            case "split":
                d = self._number(0, rank - 1)
                first = self._one_of([n for n in range(1, x.shape[d] + 1) if x.shape[d] % n == 0])
                shape = [*x.shape[:d], first, x.shape[d] // first, *x.shape[d + 1 :]]
                function = functools.partial(torch.reshape, shape=shape)
            case "flatten":
                d = self._number(0, rank - 2)
                function = functools.partial(torch.flatten, start_dim=d, end_dim=d + 1)
            case "unsqueeze":
                function = functools.partial(torch.unsqueeze, dim=self._number(0, rank))
            case "expand":
                n = self._one_of([2, 3, 5])
                shape = [n if size == 1 else size for size in x.shape]
                function = functools.partial(torch.broadcast_to, size=[n, *shape])
        if function(x).numel() <= MOST and function(x).dim() <= 6:
            self._add(function, i, exact=True)

    def part(self):
        if (i := self._any(lambda x: x.dim() > 0)) is None:
            return
        d = self._number(0, self.values[i].dim() - 1)
        start = self._number(0, self.values[i].shape[d] - 1)
        length = self._number(1, self.values[i].shape[d] - start)
        if length == 1 and self._data.draw(st.booleans()):
            return self._add(lambda x: x.select(d, start), i, exact=True)
        self._add(lambda x: x.narrow(d, start, length), i, exact=True)

    def whole(self):
        """A concatenation, or a padding."""
        if (i := self._any(lambda x: x.dim() > 0 and x.numel() <= MOST / 3)) is None:
            return
        d = self._number(0, self.values[i].dim() - 1)

        def fits(x):
            shape = self.values[i].shape
            return x.dim() == len(shape) and all(x.shape[k] == shape[k] for k in range(x.dim()) if k != d)

        if self._data.draw(st.booleans()):
            return self._add(lambda x, y: torch.cat([x, y, x], d), i, self._any(fits), exact=True)
        widths = [0] * (2 * (self.values[i].dim() - 1 - d)) + [self._number(0, 2), self._number(0, 2)]
        self._add(lambda x: torch.nn.functional.pad(x, widths, value=0.5), i, exact=True)

    def choose(self):
        i = self._any(lambda x: any(e and v is x for e, v in zip(self.exact, self.values, strict=True)))
        j = self._like(i)
        if j is not None:
            self._add(lambda c, x: torch.where(c > 0.1, x, c), i, j)

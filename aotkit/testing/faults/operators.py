"""Wrong operators, constants, signs and operands in the forward graph."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from aotkit.testing.case import Case
from aotkit.testing.faults.planting import Subject
from aotkit.testing.faults.rewriting import calls, set_argument

aten = torch.ops.aten
faults = Subject("operators")

cube = Case.of("permute_cube", lambda x: x.permute(1, 2, 0).sin(), lambda new: (new.normal(3, 3, 3),))
average = Case.of("padded_average", lambda x: F.avg_pool2d(x, 3, 1, 1), lambda new: (new.normal(1, 2, 5, 5),))
from_the_end = Case.of("from_the_end", lambda x, i: x[i], lambda new: (new.normal(6, 4), new.integers(6, 5) - 3))


def _ties(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a = a.round()
    return torch.where(a > b.round(), a, b * 2), a.argmax(1)


ties = Case.of("ties", _ties, lambda new: (new.normal(6, 9), new.normal(6, 9)))

faults.operator("pointwise_chain", aten.cos, index=1).add(
    "sine_for_cosine", "The second of two cosines is a sine.", lambda x: x.sin()
)
faults.argument("gelu_mlp", aten.gelu, approximate="tanh").add("approximate_gelu", "Gelu is approximated by tanh.")
faults.argument("activations", aten.leaky_relu, negative_slope=0.02).add(
    "leaky_slope", "The slope of leaky_relu is 0.02 instead of 0.01."
)
faults.argument("activations", aten.clamp, max=None).add("clamp_bound", "The upper bound of clamp is missing.")
faults.operator("factories", aten.sub).add("swapped_subtraction", "a - b is computed as b - a.", lambda a, b: b - a)
faults.operator("masked_fill", aten.mm).add(
    "negated_sum", "A matrix product has the wrong sign.", lambda a, b: -(a @ b)
)
faults.operator("checkpointed", aten.mm).add(
    "untransposed_weight", "A square weight is transposed before the product.", lambda a, b: a @ b.t()
)
faults.argument(cube, aten.permute, dims=[2, 0, 1]).add(
    "inverse_permutation", "A permutation of dimensions is applied backwards."
)
faults.argument("views", aten.roll, shifts=[-1]).add("roll_the_other_way", "roll moves elements to the other side.")


@faults.graph("views")
def slice_starts_one_later(gm: GraphModule) -> None:
    """x[:, ::2] begins at the second column."""
    node = next(n for n in calls(gm, aten.slice) if n.args[-1] == 2)
    set_argument(node, "start", 1)


faults.argument("conv1d_padded", aten.constant_pad_nd, pad=[1, 1]).add(
    "padding_on_both_sides", "Two zeros before the sequence become one before and one after it."
)
faults.argument("masked_fill", aten.triu, diagonal=0).add("mask_off_by_one", "A causal mask hides the diagonal too.")
faults.argument(average, aten.avg_pool2d, count_include_pad=False).add(
    "padding_not_counted", "At the border, an average divides by the number of elements inside."
)
faults.operator("complex_numbers", aten._conj).add("lost_conjugation", "conj does nothing.", lambda z: z)
faults.operator("broadcasting", aten.add).add(
    "missing_broadcast",
    "The first element of a row is added to all columns, instead of each to its own.",
    lambda x, row: x + row[..., :1],
)
faults.argument("gather_and_scatter", aten.index_put, accumulate=False).add(
    "duplicates_overwrite", "index_put with accumulate=True keeps one of several values with the same index."
)
faults.arguments(from_the_end).add(
    "negative_indices_clamped",
    "A negative index reads the first row instead of counting from the end.",
    lambda a: [a[0], a[1].relu()],
)
faults.operator(ties, aten.gt).add("greater_or_equal", "a > b holds where they are equal, too.", lambda a, b: a >= b)
faults.operator(ties, aten.argmax).add(
    "last_of_equal_maxima",
    "argmax returns the last of several maxima; the first is right.",
    lambda x, dim: x.shape[dim] - 1 - x.flip(dim).argmax(dim),
)
faults.results("several_losses").add(
    "swapped_outputs", "The first two of several scalar outputs are exchanged.", lambda r: [r[1], r[0], *r[2:]]
)

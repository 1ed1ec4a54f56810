"""Wrong gradients, from backward graphs and from what runs them."""

import torch
import torch.nn.functional as F
from torch.fx import GraphModule

from aotkit.testing.case import Case
from aotkit.testing.faults.memory import without_tail
from aotkit.testing.faults.planting import Subject
from aotkit.testing.faults.rewriting import alter, calls, results_of, set_results

aten = torch.ops.aten
faults = Subject("gradients")

three = Case.of(
    "sum_of_products",
    lambda x, y, z: (x.sin() * y.cos() + x * z, x.exp()),
    lambda new: (new.normal(5, 5), new.normal(5, 5), new.normal(5, 5)),
)
tangents = faults.arguments(three, "backward")
gradients = faults.results(three, "backward")

gradients.add("swapped_gradients", "Two inputs get each other's gradient.", lambda r: [r[0], r[2], r[1]])
gradients.add("gradient_to_the_next_input", "Each gradient goes to the next input.", lambda r: [r[-1], *r[:-1]])
faults.operator(three, aten.add, "backward", index=-1).add(
    "missing_second_use", "Of an input that is used several times, the last use is left out.", lambda x, y: x
)
faults.argument(three, aten.add, "backward", alpha=2).add(
    "doubled_term", "One of the terms of a gradient is counted twice."
)
faults.operator(three, aten.neg, "backward").add("lost_sign", "The derivative of cos is sin.", lambda x: x)
tangents.add(
    "second_tangent_ignored",
    "The gradient of the second output does not flow back.",
    lambda a: [*a[:-1], torch.zeros_like(a[-1])],
)
tangents.add(
    "uniform_tangents",
    "The gradient of an output is taken to be the same for all its elements.",
    lambda a: [*a[:-2], *(t.flatten()[0].expand_as(t) for t in a[-2:])],
)
tangents.add(
    "tangent_in_other_order",
    "The gradient of a square output is read column by column.",
    lambda a: [*a[:-1], a[-1].t()],
)
gradients.add("gradient_of_none", "An input that needs a gradient gets none.", lambda r: [r[0], None, r[2]])
gradients.add("gradient_of_zeros", "The gradient of one of several inputs is zero.", lambda r: [r[0], r[1] * 0, r[2]])
gradients.add("gradient_dtype", "A gradient is float64 instead of float32.", lambda r: [r[0].double(), *r[1:]])
gradients.add(
    "tail_of_a_gradient",
    "What a gradient has beyond a multiple of 16 elements is zero.",
    lambda r: [*r[:2], without_tail(r[2])],
)

frozen = Case.of("frozen", lambda x, w: x * w, lambda new: (new.normal(4, 3), new.values(4, 3)))
faults.results(frozen, "backward").add(
    "gradient_for_a_frozen_input", "An input that needs no gradient gets one.", lambda r: [r[0], r[0]]
)
faults.argument("several_losses", aten.div, "backward", other=14).add(
    "scale_of_a_mean", "The gradient of a mean is divided by n - 1."
)
faults.operator("broadcasting", aten.sum, "backward").add(
    "mean_over_a_broadcast",
    "The gradient of a broadcast input is averaged, not summed.",
    lambda x, dim, keepdim: x.mean(dim, keepdim),
)
faults.operator("broadcasting", aten.sum, "backward", index=1).add(
    "first_of_a_broadcast",
    "The gradient of a broadcast input comes from the first place only.",
    lambda x, dim, keepdim: x.narrow(dim[0], 0, 1),
)

looked_up = Case.of(
    "looked_up",
    lambda table, index: F.embedding(index, table).sin(),
    lambda new: (new.normal(4, 6), new.integers(4, 9)),
)
faults.argument(looked_up, aten.embedding_dense_backward, "backward", scale_grad_by_freq=True).add(
    "scaled_by_frequency", "The gradient of a row that is looked up several times is averaged."
)

zeros = Case.of("relu_at_zero", lambda x: x.relu(), lambda new: (new.given(-1.0, 0.0, 2.0, 0.0, -3.0),))
faults.argument(zeros, aten.threshold_backward, "backward", threshold=-1e-30).add(
    "gradient_of_relu_at_zero", "relu passes the gradient on where its input is exactly zero."
)
faults.argument("gelu_mlp", aten.gelu_backward, "backward", approximate="tanh").add(
    "gradient_of_another_gelu", "The backward pass of gelu uses the approximation by tanh, the forward pass does not."
)
faults.operator("gelu_mlp", aten.add, "backward").add(
    "residual_gradient_dropped", "The gradient of x + f(x) has only the term of f.", lambda x, of_f: of_f
)
faults.graph("where", "backward").add(
    "mask_the_other_way",
    "The gradient of where flows to the side that was not chosen.",
    lambda gm: alter(calls(gm, aten.where)[0].all_input_nodes[0], torch.logical_not),
)


@faults.graph("unused_and_detached", "backward")
def gradient_through_detach(gm: GraphModule) -> None:
    """A detached use of an input takes part in its gradient."""
    results = results_of(gm)
    with gm.graph.inserting_before(gm.graph.output_node()):
        results[1] = gm.graph.call_function(torch.add, (results[1], calls(gm, aten.mul)[0]))
    set_results(gm, results)


faults.results("layer_norm", "backward").add(
    "gradients_of_scale_and_shift",
    "The weight and the bias of a layer norm, of equal shape, get each other's gradient.",
    lambda r: [r[0], r[2], r[1]],
)
faults.results(Case.of("no_gradient", lambda x, w: x @ w, lambda new: (new.values(4, 3), new.values(3, 2)))).add(
    "output_not_detached", "An output requires gradients although no input does.", lambda r: [r[0].requires_grad_()]
)

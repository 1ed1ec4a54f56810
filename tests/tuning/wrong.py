"""Backends that are wrong, each in a way of its own: name -> a function from a graph's results to what is returned.

`call` is how often the graph has run before; `kept` is a dict that outlives the calls; `inputs` are the graph's.
"""

import torch

import aotkit

LATE = 60  # calls: more than a check makes, and fewer than timing does


def every(change):
    """The same change of all results that are tensors."""
    return lambda results, inputs, call, kept: [x if x is None else change(x) for x in results]


def first(change):
    """A change of the first result alone."""
    return lambda results, inputs, call, kept: [change(results[0]), *results[1:]]


def stale(results, inputs, call, kept):
    return kept.setdefault("results", results)


def one_behind(results, inputs, call, kept):
    kept["last"], last = results, kept.get("last", results)
    return last


def in_one_buffer(results, inputs, call, kept):
    """Results of all calls in the same memory."""
    return [x if x is None else kept.setdefault(i, torch.empty_like(x)).copy_(x) for i, x in enumerate(results)]


def writes_inputs(results, inputs, call, kept):
    next(x for x in inputs if x.is_floating_point()).mul_(1.5)
    return results


def swapped(results, inputs, call, kept):
    return results[::-1]


def without_last(results, inputs, call, kept):
    return [*results[:-1], None]


def draws(results, inputs, call, kept):
    torch.rand(())
    return results


def later(results, inputs, call, kept):
    return [x * 1.5 for x in results] if call > LATE else results


def raises_later(results, inputs, call, kept):
    if call > LATE:
        raise RuntimeError("no more")
    return results


def last_element(x):
    x = x.clone()
    x.view(-1)[-1] += 0.1
    return x


FORWARD = {
    "scaled": first(lambda x: x * 1.01),
    "shifted": first(lambda x: x + 0.01),
    "negated": first(lambda x: -x),
    "zero": first(torch.zeros_like),
    "without_nan": first(lambda x: torch.where(x.isnan(), 0.0, x)),
    "clamped": first(lambda x: x.clamp(-4, 4)),
    "positive": first(torch.relu),
    "coarse": first(lambda x: x.bfloat16().float()),
    "wider": first(lambda x: x.double()),
    "last_element": first(last_element),
    "permuted": first(lambda x: x.flip(0)),
    "other_strides": first(lambda x: x.t().contiguous().t()),
    "stale": stale,
    "one_behind": one_behind,
    "in_one_buffer": in_one_buffer,
    "writes_inputs": writes_inputs,
    "draws": draws,
    "later": later,
    "raises_later": raises_later,
}
BACKWARD = {
    "gradients_scaled": every(lambda x: x * 1.01),
    "one_gradient_scaled": first(lambda x: x * 2),
    "one_gradient_zero": first(torch.zeros_like),
    "one_gradient_dropped": without_last,
    "gradients_swapped": swapped,
    "gradients_without_nan": every(lambda x: torch.where(x.isnan(), 0.0, x)),
    "gradients_averaged": first(lambda x: x.mean(0, keepdim=True).expand(x.shape).contiguous()),
    "gradients_stale": stale,
    "gradients_in_one_buffer": in_one_buffer,
    "gradients_later": later,
    "gradients_coarse": every(lambda x: x.bfloat16().float()),
}


def compiler(change):
    """A graph compiler whose results are changed."""

    def compile_graph(gm, example_inputs):
        calls, kept = iter(range(10**9)), {}
        return lambda *inputs: change([*gm(*inputs)], inputs, next(calls), kept)

    return compile_graph


def right(gm, example_inputs):
    return gm


def backends():
    """Name -> backend."""
    found = {name: aotkit.Backend(compiler(change), right) for name, change in FORWARD.items()}
    return found | {name: aotkit.Backend(right, compiler(change)) for name, change in BACKWARD.items()}

"""Each promise of a stage, broken once: the error names the stage, what it promised, and what was found."""

import re

import pytest
import torch
from functorch.compile import default_partition

import aotkit
from aotkit.stages import pipeline, verifier
from aotkit.testing.faults import FAULTS
from aotkit.testing.faults.judge import refusal

aten = torch.ops.aten


def noisy(x, w):
    h = (x @ w).sin()
    w.detach().mul_(2)
    return torch.dropout(h, 0.5, True) * 1, h.view(-1)


def assigning(x, w):
    w.data = w * 2
    return (x * w).sin()


def tensors():
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)


def as_it_is(gm, example_inputs):
    return gm


def compile_(fn=noisy, partition="default", **backend):
    plug_in = aotkit.Backend(as_it_is, **backend)
    compiled = aotkit.compile(fn, backend=plug_in, partition=partition, random="torch", check=False)
    return compiled(*tensors())


def first(gm, target):
    return next(n for n in gm.graph.nodes if n.target is target)


def placeholders(gm):
    return gm.graph.find_nodes(op="placeholder")


def set_results(gm, change):
    results = list(gm.graph.output_node().args[0])
    gm.graph.output_node().args = (tuple(change(results)),)


def insert(gm, node, target, *args):
    with gm.graph.inserting_after(node):
        return gm.graph.call_function(target, (node, *args))


# What a joint pass may do wrong.


def read_too_early(gm):
    first(gm, aten.mm.default).append(first(gm, aten.sin.default).next)
    first(gm, aten.mm.default).prepend(first(gm, aten.sin.default))


def reader_that_is_none(gm):
    first(gm, aten.mm.default).users[first(gm, aten.native_dropout.default)] = None


def no_note(gm):
    del first(gm, aten.sin.default).meta["val"]


def note_of_another_operator(gm):
    first(gm, aten.sin.default).target = aten.sum.default


def operator_of_other_inputs(gm):
    node = first(gm, aten.mm.default)
    node.args = (node.args[0], insert(gm, placeholders(gm)[1], aten.unsqueeze.default, 0))


def input_of_another_name(gm):
    placeholders(gm)[0].name = "x"


def inputs_swapped(gm):
    placeholders(gm)[0].prepend(placeholders(gm)[1])


def result_of_another_type(gm):
    node = first(gm, aten.sin.default)
    wide = insert(gm, node, aten._to_copy.default)
    wide.kwargs = {"dtype": torch.float64}
    wide.meta["val"] = node.meta["val"].double()
    set_results(gm, lambda results: [wide if i == 1 else r for i, r in enumerate(results)])


def result_left_out(gm):
    set_results(gm, lambda results: results[:-1])


def input_returned(gm):
    node = placeholders(gm)[0]
    set_results(gm, lambda results: [node if i == 1 else r for i, r in enumerate(results)])


def draw_left_out(gm):
    node = first(gm, aten.native_dropout.default)
    for i, user in enumerate(list(node.users)):
        user.target, user.args = (aten.clone.default, aten.gt.Scalar)[i], (node.args[0], 0)[: i + 1]
    gm.graph.erase_node(node)


def write_added(gm):
    node, value = placeholders(gm)[0], first(gm, aten.sin.default)
    insert(gm, value, aten.zero_.default).args = (node,)


JOINT = [
    (read_too_early, verifier.well_formed, "was used before it has been defined"),
    (reader_that_is_none, verifier.well_formed, "native_dropout counts as its reader, at node mm of"),
    (no_note, verifier.described, "there is no such note, at node sin of"),
    (note_of_another_operator, verifier.described, "shape [4, 4], strides [4, 1]; its operator gives"),
    (operator_of_other_inputs, verifier.described, "there is no such note, at node unsqueeze"),
    (input_of_another_name, verifier.same_inputs, "the inputs primals_1, primals_2, tangents_1"),
    (inputs_swapped, verifier.same_inputs, "are primals_2, primals_1, tangents_1"),
    (result_of_another_type, verifier.same_results, "result 1 was torch.float32 on cpu, shape"),
    (result_left_out, verifier.same_results, "there were"),
    (input_returned, verifier.same_memory, "output 1 shared its memory with nothing else, and shares it with input"),
    (draw_left_out, verifier.same_effects, "of 1 times 'draw of random numbers', 0 are left, at node native_dropout"),
    (write_added, verifier.same_effects, "'write to primals_1 by aten.zero_.default' is new"),
]


@pytest.mark.parametrize(("change", "promise", "found"), JOINT, ids=lambda value: getattr(value, "__name__", ""))
def test_a_joint_pass_that_breaks_a_promise_fails_at_its_door(change, promise, found):
    with pytest.raises(aotkit.CompileError) as caught:
        compile_(joint_pass=lambda gm, inputs: change(gm))
    reason = caught.value.reason
    assert reason.startswith("joint pass of backend "), reason
    assert promise.__doc__ in reason
    assert found in reason

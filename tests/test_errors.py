"""When a backend, a partitioner or the function is wrong: who is to blame, on which graph, and what runs instead."""

import dataclasses
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule

import aotkit
from aotkit.backends.nop import compile_graph
from aotkit.partitioners.default import partition as split


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return (x @ self.weight).sin(), x.cos()


@pytest.fixture
def layer():
    return Layer()


@pytest.fixture
def x():
    return torch.randn(3, 4, requires_grad=True)


def train(call, layer, x):
    """Outputs and gradients of one step."""
    outputs = call(x)
    return *outputs, *torch.autograd.grad(outputs[0].sum() + 2 * outputs[1].sum(), (x, layer.weight))


def altering(alter):
    """A graph compiler whose compiled function returns `alter(outputs)`."""

    def faulty(gm, example_inputs):
        return lambda *inputs: alter(list(gm(*inputs)))

    return faulty


def of_role(role, compiler):
    """A backend that compiles the forward or the backward graph with `compiler`, the other one properly."""
    return aotkit.Backend(*((compiler, compile_graph) if role == "forward" else (compile_graph, compiler)))


def faulty(gm, example_inputs):
    raise ValueError("no such instruction")


def first(function):
    """Alter the first output only."""
    return lambda outputs: [function(outputs[0]), *outputs[1:]]


def fails(*args):
    raise ValueError("out of registers")


# What a graph compiler can do wrong -> what the message says about it.
BACKEND_FAULTS = {
    "raises_while_compiling": (faulty, "ValueError: no such instruction"),
    "raises_at_run_time": (altering(fails), "ValueError: out of registers"),
    "returns_no_callable": (lambda gm, inputs: 3, "it returned int, not a callable"),
    "returns_none": (altering(lambda out: None), "returned NoneType, not a list or tuple of outputs"),
    "too_few_outputs": (altering(lambda out: out[:-1]), r"returned \d outputs; the graph has \d"),
    "too_many_outputs": (altering(lambda out: [*out, out[0]]), r"returned \d outputs; the graph has \d"),
    "wrong_shape": (altering(first(lambda t: t.flatten())), r"a tensor of .*shape \[1\d\].*output 0.*shape \[\d, 4\]"),
    "wrong_dtype": (altering(first(lambda t: t.double())), r"torch\.float64.*output 0.*torch\.float32"),
    "none_for_a_tensor": (altering(first(lambda t: None)), "returned NoneType as output 0"),
    "number_for_a_tensor": (altering(first(lambda t: 1.5)), "returned float as output 0"),
}


def raising(joint, joint_inputs, **kwargs):
    raise ValueError("no cut found")


def returns_one_graph(joint, joint_inputs, **kwargs):
    return joint


def changed_results(change):
    def partition(joint, joint_inputs, *, num_fwd_outputs, **kwargs):
        forward, backward = split(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
        output = forward.graph.output_node()
        results = list(output.args[0])
        output.args = (tuple(results[:num_fwd_outputs] + change(results[:num_fwd_outputs], results[num_fwd_outputs:])),)
        forward.recompile()
        return forward, backward

    return partition


def swapped(outputs, saved):
    """The saved values with one replaced by an output of the same shape."""
    i = next(i for i, s in enumerate(saved) if s.meta["val"].shape == outputs[0].meta["val"].shape)
    return [*saved[:i], outputs[0], *saved[i + 1 :]]


# The partitioner, the graph it is shown with, and what the message says.
PARTITIONER_FAULTS = {
    "raises": (raising, "joint", "ValueError: no cut found"),
    "returns_one_graph": (returns_one_graph, "joint", r"not a tuple \(forward, backward\) of GraphModules"),
    "drops_a_saved_value": (
        changed_results(lambda out, saved: saved[:-1]),
        "joint",
        r"forward graph saves 2 values and there are 2 tangents, but its backward graph takes 5 inputs",
    ),
}


@pytest.mark.parametrize("role", ["forward", "backward"])
@pytest.mark.parametrize("fault", BACKEND_FAULTS)
def test_a_faulty_backend_is_named_with_its_graph(fault, role, layer, x):
    compiler, says = BACKEND_FAULTS[fault]
    aotkit.register_backend("faulty", of_role(role, compiler))
    try:
        compiled = aotkit.compile(layer, backend="faulty", partition="default")
    finally:
        aotkit.unregister_backend("faulty")
    with pytest.raises(aotkit.CompileError, match=says) as e:
        train(compiled, layer, x)
    assert str(e.value).startswith(f"backend 'faulty' failed on the {role} graph of 'Layer.forward': ")
    assert isinstance(e.value.graph, GraphModule)
    names = {node.name for node in e.value.graph.graph.find_nodes(op="placeholder")}
    assert any("tangents" in name for name in names) == (role == "backward")
    assert "torch.ops.aten" in str(e.value)  # shows the graph


@pytest.mark.parametrize("fault", PARTITIONER_FAULTS)
def test_a_faulty_partitioner_is_named_with_its_graph(fault, layer, x):
    partition, role, says = PARTITIONER_FAULTS[fault]
    with pytest.raises(aotkit.CompileError, match=says) as e:
        train(aotkit.compile(layer, backend="nop", partition=partition), layer, x)
    assert str(e.value).startswith(f"partitioner {partition.__name__!r} failed on the {role}")
    assert isinstance(e.value.graph, GraphModule)


@pytest.mark.parametrize("fault", ["raises_while_compiling", "raises_at_run_time"])
def test_the_plugins_own_exception_is_the_cause(fault, layer, x):
    with pytest.raises(aotkit.CompileError) as e:
        train(aotkit.compile(layer, backend=BACKEND_FAULTS[fault][0], partition="default"), layer, x)
    assert isinstance(e.value.__cause__, ValueError)


def test_faults_show_without_the_check(layer, x):
    for compiler, says in BACKEND_FAULTS.values():
        with pytest.raises(aotkit.CompileError, match=says):
            train(aotkit.compile(layer, backend=compiler, partition="default", check=False), layer, x)


def test_a_faulty_inference_compiler_is_named(layer, x):
    backend = aotkit.Backend(compile_graph, inference_compiler=faulty)
    compiled = aotkit.compile(layer, backend=backend, partition="default")
    train(compiled, layer, x)
    with torch.no_grad(), pytest.raises(aotkit.CompileError, match="ValueError: no such instruction"):
        compiled(x)


# Wrong numbers.


def mismatch(layer, x, **options):
    with pytest.raises(aotkit.MismatchError) as e:
        train(aotkit.compile(layer, **{"backend": "nop", "partition": "default", **options}), layer, x)
    return e.value


def test_a_wrong_output_is_named_with_numbers(layer, x):
    error = mismatch(layer, x, backend=of_role("forward", altering(first(lambda t: t + 0.5))))
    text = str(error)
    assert text.startswith("'Layer.forward' with backend 'faulty' and partition 'default' differs from eager:")
    assert "output 0            differs by up to 0.5 in 12 of 12 elements; " in text
    assert "output 1            ok: " in text


def test_of_many_values_the_wrong_ones_are_shown(only_the_verdict):
    def many(x):
        return [x * (i + 1) for i in range(100)]

    wrong = altering(lambda outputs: [y + 1 if i in (7, 93) else y for i, y in enumerate(outputs)])
    with pytest.raises(aotkit.MismatchError) as e:
        aotkit.check(many, torch.randn(3), backend=wrong)
    _, *lines, others, _ = str(e.value).splitlines()
    assert len(lines) == 20
    assert ["differs" in line for line in lines] == [True] * 2 + [False] * 18
    assert lines[0].lstrip().startswith("output 7 ")
    assert others == "  and 80 more ok"


def test_a_wrong_gradient_is_named_by_its_parameter(layer, x):
    def last_but(outputs):
        return [outputs[0], outputs[1] * 1.001]

    error = mismatch(layer, x, backend=of_role("backward", altering(last_but)))
    problems = {c.what: c.problem for c in error.report.comparisons}
    assert [what for what, problem in problems.items() if problem] == ["gradient of weight"]
    assert "of 16 elements; " in problems["gradient of weight"]


def test_a_wrongly_saved_value_is_a_wrong_gradient(layer, x):
    partition = changed_results(swapped)
    error = mismatch(layer, x, partition=partition)
    assert "partition 'partition' differs from eager" in str(error)
    wrong = [c.what for c in error.report.comparisons if c.problem]
    assert wrong
    assert all(what.startswith("gradient of ") for what in wrong)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_are_wrong(value, layer, x):
    def poisoned(t):
        return t.index_fill(0, torch.tensor([0]), value)

    error = mismatch(layer, x, backend=of_role("forward", altering(first(poisoned))))
    assert "output 0            has NaN or infinity at other places than eager's" in str(error)


def test_a_wrong_integer_is_wrong():
    backend = aotkit.Backend(altering(lambda outputs: [outputs[0] + 1]))
    with pytest.raises(aotkit.MismatchError, match="output 0  differs in 3 of 3 elements"):
        aotkit.compile(lambda n: n * 2, backend=backend)(torch.arange(3))


def test_a_wrong_mutation_is_named():
    def update(total, x):
        total.add_(x.detach())
        return x * 2

    backend = aotkit.Backend(altering(first(lambda t: t + 1)))
    with pytest.raises(aotkit.MismatchError, match="input total after the call  differs by up to 1 in 3 of 3"):
        aotkit.compile(update, backend=backend)(torch.zeros(3), torch.ones(3))


def test_a_mismatch_leaves_the_inputs_alone():
    def update(total):
        return total.add_(1)

    total = torch.zeros(3)
    with pytest.raises(aotkit.MismatchError):
        aotkit.compile(update, backend=altering(first(lambda t: t + 1)))(total)
    assert total.tolist() == [0, 0, 0]


def test_check_false_gives_the_backends_numbers(layer, x):
    compiled = aotkit.compile(
        layer, backend=of_role("forward", altering(first(lambda t: t + 0.5))), partition="default", check=False
    )
    torch.testing.assert_close(train(compiled, layer, x)[0], train(layer, layer, x)[0] + 0.5)


def test_rounding_noise_passes():
    """The gradient of a bias before a batch norm is zero but for rounding errors, which no backend repeats."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    report = aotkit.check(network, x, backend="inductor")
    noise = next(c for c in report.comparisons if c.what == "gradient of 0.bias")
    assert noise.problem is None
    assert 0 < noise.error <= noise.allowed


@pytest.mark.parametrize(("name", "position"), [("0.weight", 1), ("1.bias", 4)])
@pytest.mark.usefixtures("only_the_verdict")
def test_an_error_of_a_thousandth_in_one_gradient_fails(name, position):
    def plant(outputs):
        return [t * 1.001 if i == position else t for i, t in enumerate(outputs)]

    inductor = aotkit.get_backend("inductor")
    backend = dataclasses.replace(inductor, bw_compiler=altering_compiled(inductor, plant))
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    with pytest.raises(aotkit.MismatchError) as e:
        aotkit.check(network, torch.randn(2, 3, 6, 6, requires_grad=True), backend=backend)
    assert [c.what for c in e.value.report.comparisons if c.problem] == [f"gradient of {name}"]


def altering_compiled(backend, alter):
    def compile(gm, example_inputs):
        run = backend.bw_compiler(gm, example_inputs)
        return lambda *inputs: alter(list(run(list(inputs))))

    return compile


# Reports.


def test_check_returns_every_comparison(layer, x):
    report = aotkit.check(layer, x, backend="nop", partition="default")
    assert isinstance(report, aotkit.CheckReport)
    assert report.passed
    whats = ["output 0", "output 1", "gradient of x", "gradient of weight"]
    assert [c.what for c in report.comparisons] == whats
    title, *lines = str(report).splitlines()
    assert title == "'Layer.forward' with backend 'nop' and partition 'default' equals eager, also with other values:"
    assert [line[2:].partition("  ")[0] for line in lines] == whats
    assert all("ok: equal" in line for line in lines)


def test_check_reports_mutated_inputs():
    def update(total, x):
        total.add_(x.detach())
        return x * 2

    report = aotkit.check(update, torch.zeros(3), torch.ones(3, requires_grad=True), backend="nop")
    assert [c.what for c in report.comparisons] == ["output 0", "gradient of x", "input total after the call"]


def test_a_mismatch_carries_its_report(layer, x):
    backend = of_role("forward", altering(first(lambda t: t + 0.5)))
    with pytest.raises(aotkit.MismatchError) as e:
        aotkit.check(layer, x, backend=backend, partition="default")
    report = e.value.report
    assert not report.passed
    assert str(report) in str(e.value)
    (wrong,) = [c for c in report.comparisons if c.problem]
    assert wrong.what == "output 0"
    assert wrong.error == pytest.approx(0.5)
    assert wrong.allowed < wrong.error


# on_error="eager".

EVERYTHING_WRONG = {
    **{name: {"backend": fault[0]} for name, fault in BACKEND_FAULTS.items()},
    **{name: {"backend": of_role("backward", fault[0])} for name, fault in BACKEND_FAULTS.items()},
    **{name: {"partition": fault[0]} for name, fault in PARTITIONER_FAULTS.items()},
    "wrong_output": {"backend": of_role("forward", altering(first(lambda t: t + 0.5)))},
    "wrong_gradient": {"backend": of_role("backward", altering(first(lambda t: t + 0.5)))},
    "wrong_saved_value": {"partition": changed_results(swapped)},
}


@pytest.mark.usefixtures("only_the_verdict")
@pytest.mark.parametrize("wrong", EVERYTHING_WRONG)
def test_on_error_eager_warns_once_and_keeps_working(wrong, layer, x):
    options = {"backend": "nop", "partition": "default", **EVERYTHING_WRONG[wrong]}
    compiled = aotkit.compile(layer, on_error="eager", **options)
    want = train(layer, layer, x)
    with pytest.warns(aotkit.EagerFallbackWarning, match=r"'Layer\.forward' runs eagerly: ") as caught:
        got = train(compiled, layer, x)
    assert len(caught) == 1
    assert caught[0].filename == __file__  # points at the call, not into aotkit
    torch.testing.assert_close(got, want, rtol=0, atol=0)

    for _ in range(2):  # and does not warn again: warnings are errors here
        other = torch.randn(3, 4, requires_grad=True)
        torch.testing.assert_close(train(compiled, layer, other), train(layer, layer, other), rtol=0, atol=0)


def test_on_error_eager_does_not_hide_what_works(layer, x):
    compiled = aotkit.compile(layer, backend="nop", on_error="eager")
    torch.testing.assert_close(train(compiled, layer, x), train(layer, layer, x))
    assert compiled.graphs(x).backward is not None


# Wrong use.


@pytest.mark.parametrize("wrong", [3, "f", [torch.sin]])
def test_only_functions_and_modules_compile(wrong):
    with pytest.raises(TypeError, match=r"compile takes a function or an nn\.Module, not "):
        aotkit.compile(wrong)


def test_a_wrong_option_lists_the_right_ones():
    with pytest.raises(ValueError, match="capture must be one of 'auto', 'aot', 'dynamo', not 'fx'"):
        aotkit.compile(torch.sin, capture="fx")
    with pytest.raises(ValueError, match="on_error must be one of 'raise', 'eager', not 'ignore'"):
        aotkit.compile(torch.sin, on_error="ignore")
    with pytest.raises(TypeError, match="bakend"):
        aotkit.compile(torch.sin, bakend="nop")


# The function's own errors.


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("on_error", ["raise", "eager"])
def test_the_users_exceptions_come_through(check, on_error):
    options = {"backend": "nop", "check": check, "on_error": on_error}

    class Mine(Exception):
        pass

    def raises(x):
        raise Mine("mine alone")

    def mismatched(x):
        return x @ torch.ones(7, 7)

    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(Mine, match=r"^mine alone$"):
        aotkit.compile(raises, **options)(x)
    with pytest.raises(RuntimeError) as want:
        mismatched(x)
    with pytest.raises(RuntimeError) as got:
        aotkit.compile(mismatched, **options)(x)
    assert (type(got.value), str(got.value)) == (type(want.value), str(want.value))


@pytest.mark.parametrize("check", [True, False])
def test_wrong_arguments_give_pythons_own_error(check):
    def f(x, scale):
        return x * scale

    compiled = aotkit.compile(f, backend="nop", check=check)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'scale'"):
        compiled(torch.ones(2))


@pytest.mark.parametrize("check", [True, False])
def test_strict_leaves_the_functions_own_errors(check):
    def f(x):
        if x.shape[0] == 0:
            raise ValueError("empty batch")
        return x * 2

    with pytest.raises(ValueError, match="empty batch"):
        aotkit.compile(f, backend="nop", check=check, strict=True)(torch.ones(0, 3))


@pytest.mark.parametrize("check", [True, False])
def test_data_dependent_code_is_located_and_dynamo_suggested(check):
    def clip(x):
        if x.sum() > 0:
            return x * 2
        return x

    with pytest.raises(aotkit.TraceError) as e:
        aotkit.compile(clip, backend="nop", check=check, capture="aot")(torch.ones(3, requires_grad=True))
    line = clip.__code__.co_firstlineno + 1
    assert f"{__file__.rsplit('/', 1)[-1]}:{line}" in str(e.value)
    assert "needs the value of a tensor" in str(e.value)
    assert "Use capture='dynamo'" in str(e.value)


def test_an_object_that_no_graph_can_return_is_named():
    class Result:
        def __init__(self, value):
            self.value = value

    with pytest.raises(aotkit.TraceError, match="the function returns a Result, which a compiled graph cannot rebuild"):
        aotkit.compile(lambda x: Result(x * 2), backend="nop", capture="aot")(torch.ones(2))


def test_such_an_object_can_be_returned_eagerly():
    class Result:
        def __init__(self, value):
            self.value = value

    compiled = aotkit.compile(lambda x: Result(F.relu(x)), backend="nop", capture="aot", on_error="eager")
    with pytest.warns(aotkit.EagerFallbackWarning, match="returns a Result"):
        assert compiled(torch.ones(2)).value.tolist() == [1, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(torch.ones(2)).value.tolist() == [1, 1]

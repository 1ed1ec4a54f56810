"""Which values share a kernel of the backend `fuser`, and how it is laid out; nothing runs."""

import pytest
import torch
from torch.nn import functional as F

import aotkit
from aotkit.backends import fuser
from aotkit.backends.fuser import limits, schedule
from aotkit.backends.fuser.launches import Fused
from aotkit.backends.fuser.loops import Loops
from aotkit.backends.fuser.values import below
from aotkit.backends.fusion_definition.fusion import Fusion

NOP = aotkit.Backend(lambda gm, example_inputs: gm, decompositions=fuser.decompositions, fixed_sizes=True)
CPU = torch.device("cpu")


def fused(gm):
    """The kernels of a whole graph."""
    results = [n for n in gm.graph.output_node().args[0] if n is not None and n.op != "placeholder"]
    gm.graph.output_node().args = (tuple(dict.fromkeys(results)),)
    strides = tuple(n.meta["val"].stride() for n in gm.graph.find_nodes(op="placeholder"))
    return Fused(Fusion(fuser.ENGINE, gm, strides, CPU)._definition)


def forward(fn, *args):
    return fused(aotkit.extract(fn, *args, backend=NOP).forward)


def backward(fn, *args):
    return fused(aotkit.extract(fn, *args, backend=NOP).backward)


def rand(*shape):
    return torch.randn(shape, requires_grad=True)


def described(compiled):
    """Rows and elements of a row of each kernel, and how many programs add rows up; None: nothing is reduced."""
    found = []
    for kernel in compiled.plan.kernels:
        size = compiled.plan.loops.size
        found.append((size(kernel.rows), None if kernel.inner is None else size(kernel.inner)))
    return found


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def test_a_pointwise_function_is_one_kernel():
    compiled = forward(lambda x, y: (x.sin() + y, x.cos()), rand(64, 32), rand(32))
    assert described(compiled) == [(2048, None)]
    assert len(compiled.plan.kernels[0].stores) == 2


def test_a_tensor_and_its_transpose_are_one_kernel():
    assert described(forward(lambda x: x + x.t(), rand(512, 512))) == [(512 * 512, None)]


def test_sums_of_a_few_values_that_lie_apart_are_written_out():
    """As where heads share keys; then another position of the sum needs no kernel before."""

    def rotated(x):
        y = x.sum(2)
        return y + torch.cat([-y[..., 8:], y[..., :8]], -1)

    assert described(forward(rotated, rand(64, 4, 2, 16))) == [(64 * 4 * 16, None)]
    assert described(forward(lambda x: x.sum(-1), rand(64, 4))) == [(64, 4)]  # next to each other
    assert described(forward(lambda x: x.sum(1), rand(64, 9, 16))) == [(64 * 16, 9)]
    assert described(forward(lambda x: x.softmax(1), rand(64, 4, 16))) == [(64 * 16, 4)]


def test_gradients_of_halves_are_read_once():
    def rotated(x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    compiled = backward(rotated, rand(64, 4, 16), torch.randn(64, 1, 16), torch.randn(64, 1, 16))
    (launch,) = compiled.launches
    assert launch.code.count("tl.load(") == 4  # the gradient twice, here and at the other half; both tables
    assert launch.name.startswith("kernel0_")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x.exp().sum(-1).log() + 1, "kernel0_exp_sum_log"),
        (lambda x: x * 2 + 1, "kernel0_mul_add"),
        (lambda x: x.bfloat16(), "kernel0_cast"),
        (lambda x: x.t().clone(), "kernel0"),
    ],
)
def test_kernels_are_named_by_what_they_compute(function, name):
    (launch,) = forward(function, rand(64, 32)).launches
    assert launch.name == name
    assert f"def {name}(" in launch.code


def test_softmax_is_one_kernel_each_way():
    fn, x = lambda x: x.softmax(-1), rand(300, 1000)
    assert described(forward(fn, x)) == described(backward(fn, x)) == [(300, 1000)]


def test_a_layer_norm_and_what_surrounds_it_is_one_kernel():
    fn = lambda x, w, b: F.gelu(layer_norm(x * 2, w, b))  # noqa: E731
    assert described(forward(fn, rand(300, 768), rand(768), rand(768))) == [(300, 768)]


def test_gradients_of_weight_and_bias_are_column_sums_and_what_finishes_them():
    compiled = backward(layer_norm, rand(2048, 768), rand(768), rand(768))
    rows, last = compiled.plan.kernels
    programs = compiled.launches[0].schedule.programs
    assert described(compiled) == [(2048, 768), (768, programs)]
    assert compiled.plan.loops.size(rows.summed) == 2048
    assert (len(rows.stores), len(rows.partials)) == (1, 2)
    assert (len(last.stores), last.partials) == (2, [])


def test_a_mean_of_rows_is_a_kernel_of_rows_and_one_that_finishes():
    compiled = forward(lambda x: x.logsumexp(1).mean(), rand(2048, 500))
    programs = compiled.launches[0].schedule.programs
    assert described(compiled) == [(2048, 500), (1, programs)]


def test_cross_entropy_reads_the_logits_once():
    compiled = forward(F.cross_entropy, rand(2048, 500), torch.randint(500, (2048,)))
    walks = [(rows, inner) for rows, inner in described(compiled) if rows * (inner or 1) >= 2048 * 500]
    assert walks == [(2048, 500)]


def test_few_long_rows_are_shared_by_programs():
    compiled = forward(lambda x: (x * x).sum(), rand(1024, 1024))
    first, last = compiled.plan.kernels
    assert first.shares > 1
    assert compiled.launches[0].schedule.grid == (1, first.shares)
    assert described(compiled) == [(1, 1024 * 1024), (1, first.shares)]
    assert (first.stores, len(last.stores)) == ([], 1)


def test_many_rows_are_not_shared():
    assert [k.shares for k in forward(lambda x: x.softmax(1), rand(500, 300)).plan.kernels] == [1]


def test_a_result_that_no_reduction_needs_is_a_kernel_of_its_own():
    assert described(forward(lambda x, y: (x.softmax(1), y.sin()), rand(30, 40), rand(7))) == [(30, 40), (7, None)]


def test_kernels_write_each_result_once():
    compiled = backward(layer_norm, rand(2048, 768), rand(768), rand(768))
    written = [part.buffer for k in compiled.plan.kernels for part in (*k.stores, *k.partials)]
    assert sorted(written) == sorted(set(written))
    assert len(written) == len(compiled.plan.buffers)


def walks(compiled, elements):
    """Rows and elements of a row of each kernel that walks a whole tensor."""
    return [(rows, inner) for rows, inner in described(compiled) if rows * (inner or 1) >= elements]


def test_rows_that_something_reads_together_are_one_kernels():
    fn = lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")  # noqa: E731
    assert walks(forward(fn, rand(2048, 500), rand(2048, 500)), 2048 * 500) == [(2048, 500)]
    cosine = forward(lambda x, y: F.cosine_similarity(x, y).mean(), rand(2048, 500), rand(2048, 500))
    assert walks(cosine, 2048 * 500) == [(2048, 500)]


def test_sums_of_rows_and_of_all_are_one_walk():
    fn = lambda x, y: ((x * y).sum(1), x.sum(1), y.sum(1), (x - y).exp().mean())  # noqa: E731
    assert walks(forward(fn, rand(16, 2**17), rand(16, 2**17)), 2**21) == [(16, 2**17)]


def test_a_small_result_on_the_way_is_no_kernel_of_its_own():
    assert described(forward(lambda x, y: (x * y.exp().neg(), y.exp()), rand(64, 32), rand(32))) == [(2048, None)]


@pytest.mark.parametrize("x", [rand(8, 2**20), rand(2, 2**14, 8).transpose(1, 2)], ids=["long", "side by side"])
def test_a_variance_of_shared_rows_takes_one_walk(x):
    elements = x.numel()
    norm = forward(lambda x: F.group_norm(x.view(2, -1, x.shape[-1]), 4), x)
    shared, _ = walks(norm, elements)  # what finishes the sums is small
    assert norm.plan.kernels[0].shares > 1
    assert shared == (8, elements // 8)
    assert len(norm.plan.kernels[0].partials) == 2


def test_a_pointwise_kernel_walks_rows_where_something_is_the_same_for_a_row():
    way = forward(lambda x, y: x * y[:, None], rand(300, 1024), rand(300)).launches[0].schedule
    assert way.rows
    assert way.row_block * way.inner_block <= limits.FLAT
    assert not forward(lambda x: x * 2, rand(300, 1024)).launches[0].schedule.rows


def test_parts_of_heads_are_one_kernel():
    def norms(x):
        q, k, v = x.split([32, 16, 16], -1)
        q, k = (F.rms_norm(t.unflatten(-1, (-1, 8)), (8,)).flatten(-2) for t in (q, k))
        return torch.cat([q, k, v * 2], -1)

    assert described(forward(norms, torch.randn(600, 64))) == [(600 * 8, 8)]


def stores(compiled):
    return [len(kernel.stores) for kernel in compiled.plan.kernels]


def test_pieces_of_a_result_are_stored_where_they_are_computed():
    def pooled(x):
        return torch.cat([x.mean(1), x.std(1)], -1)

    def normalized(x, y):
        return torch.cat([F.normalize(x, dim=-1), F.normalize(y, dim=-1)], -1)

    assert described(forward(pooled, torch.randn(8, 50, 256))) == [(8 * 256, 50)]
    assert described(forward(normalized, torch.randn(64, 256), torch.randn(64, 512))) == [(64, 256), (64, 512)]


def test_gradients_of_what_was_cut_are_stored_in_pieces_that_read_what_they_share_once():
    def gated(x):
        a, b = x.chunk(2, -1)
        return F.silu(a) * b

    compiled = backward(gated, rand(64, 1024))
    (launch,) = compiled.launches
    assert launch.code.count("tl.load(") == 4  # the gradient, a sigmoid that is saved, and both halves
    assert described(compiled) == [(64 * 512, None)]
    assert described(backward(gated, rand(64, 64))) == [(64 * 64, None)]  # pieces of 32 are too short
    with_bias = backward(lambda x, bias: gated(x + bias), rand(4096, 1024), rand(1024))
    assert len(with_bias.plan.kernels) == 2  # the sums for the bias are in pieces, too, and what finishes them


def test_what_is_read_as_a_whole_is_no_piece():
    def normalized_and_turned(x):
        x = F.rms_norm(x, (8,))
        return torch.cat([-x[:, 4:], x[:, :4]], -1)

    assert stores(forward(normalized_and_turned, torch.randn(600, 8))) == [1, 1]  # of a temporary tensor, and of it

    def beside_another(x, y):
        return torch.cat([y, x[:, :4] - x[:, 4:]], -1) * x.sum(-1, keepdim=True)

    assert stores(forward(beside_another, torch.randn(600, 8), torch.randn(600, 8))) == [1, 1]
    assert stores(forward(lambda x: F.pad(x.softmax(-1), (1, 2)), torch.randn(600, 8)))[-1] == 1


@pytest.mark.parametrize("find", [forward, backward])
def test_pairs_that_lie_next_to_each_other_are_read_and_written_as_one(find):
    def rotated(x, cos, sin):
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    compiled = find(rotated, rand(4, 64, 128), torch.randn(64, 64), torch.randn(64, 64))
    assert described(compiled) == [(4 * 64 * 64, None)]
    code = compiled.launches[0].code
    assert [code.count(text) for text in ("tl.split(", "tl.join(", "tl.load(", "tl.store(")] == [1, 1, 3, 1]


def test_rows_on_their_way_fit_into_shared_memory():
    norm = backward(F.rms_norm, rand(4096, 12288), (12288,), rand(12288))
    assert norm.launches[0].schedule.stages == 1  # of 16384 float32, twice
    assert backward(F.rms_norm, rand(4096, 4096), (4096,), rand(4096)).launches[0].schedule.stages == limits.STAGES


def test_temporary_tensors_lie_in_memory_as_what_is_read():
    def response(x):
        n = x.norm(dim=1, keepdim=True)
        return x * (n / n.mean(-1, keepdim=True))

    compiled = forward(response, torch.randn(16, 500, 768))
    norms = compiled.plan.buffers[compiled.plan.kernels[0].stores[0].buffer - compiled.plan.inputs]
    assert [compiled.plan.loops.sizes[axis] for axis, _ in norms.axes] == [16, 768]


def test_a_value_of_a_row_is_computed_once_for_it():
    def response_norm(x, weight, bias):
        size = x.norm(dim=(1, 2), keepdim=True)
        return weight * x * (size / (size.mean(-1, keepdim=True) + 1e-6)) + bias

    compiled = forward(response_norm, rand(4, 64, 64, 768), rand(768), rand(768))
    (result,) = [k for k in compiled.plan.kernels if len(k.domain) == 3 and k.inner is None]
    assert not any(n.does("sqrt") for n in below(result.anchors))
    assert all(n.data[-2][-1][1] == 1 for n in result.loads if len(n.data[-2]) > 1)  # neighbours are neighbours


@pytest.mark.parametrize(("elements", "dtype"), [(1000, torch.int32), (2**31 - 1, torch.int32), (2**31, torch.int64)])
def test_what_holds_is_counted_in_as_few_bits_as_that_takes(elements, dtype):
    loops = Loops()
    row, axis = loops.axis(8), loops.axis(elements)
    holds = loops.node("load", torch.bool, (), (0, (), ((row, elements), (axis, 1)), 0))
    number = loops.node("operation", torch.int64, (holds,), "cast")
    count = loops.node("reduction", torch.int64, (number,), ("sum", frozenset({axis})))
    assert count.type is torch.int64
    assert [n.type for n in below([count]) if n.kind == "reduction"] == [dtype]


def code(compiled):
    return [kernel.code.partition("@triton.jit")[2] for kernel in compiled.kernels({})]


def test_rows_are_read_before_what_waits_for_them():
    (kernel,) = code(forward(lambda x, gate: x.sum(-1, keepdim=True) * x * gate, rand(4096, 1024), rand(4096, 1)))
    assert kernel.rindex("tl.load") < kernel.index("tl.sum")


def test_halves_that_change_places_are_read_in_words():
    def rotated(x, weight, cos, sin):
        normal = F.rms_norm(x, (128,), weight)
        return normal * cos + torch.cat((-normal[..., 64:], normal[..., :64]), -1) * sin

    tables = torch.randn(64, 1, 128), torch.randn(64, 1, 128)
    with torch.no_grad():
        (kernel,) = code(forward(rotated, rand(4, 64, 8, 128), rand(128), *tables))
    assert kernel.count("tl.max_contiguous") == 2  # of the tensor, and of the weight


def operations(compiled):
    return {n.data for kernel in compiled.plan.kernels for n in below(kernel.anchors) if n.kind == "operation"}


@pytest.mark.parametrize("find", [forward, backward])
def test_the_tanh_of_a_gelu_takes_one_exponential(find):
    assert "sigmoid" in operations(find(lambda x: F.gelu(x, approximate="tanh"), rand(64)))
    assert "tanh" not in operations(find(lambda x: F.gelu(x, approximate="tanh"), rand(64)))


def test_a_tanh_that_is_needed_stays():
    assert "tanh" in operations(forward(lambda x: (x.tanh() + 1, x.tanh()), torch.randn(64)))
    assert "tanh" in operations(forward(lambda x: (x.tanh() + 1) * x.tanh().exp(), torch.randn(64)))
    assert "sigmoid" not in operations(forward(lambda x: x.tanh() * 2, torch.randn(64)))


FUNCTIONS = {
    "pointwise": lambda x: x.sin() * 2,
    "softmax": lambda x: x.softmax(-1),
    "softmax of columns": lambda x: x.softmax(0),
    "sum": lambda x: x.sum(),
    "column sums": lambda x: x.sum(0),
    "norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "transposed": lambda x: x.t() * 2 + x.sum(1),
}


@pytest.mark.thinned
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (70, 33), (1, 5000), (5000, 1), (300, 1000), (40, 40000)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_tiles_are_powers_of_two_and_cover_everything(name, shape):
    compiled = forward(FUNCTIONS[name], rand(*shape))
    for kernel, launch in zip(compiled.plan.kernels, compiled.launches, strict=True):
        way, size = launch.schedule, compiled.plan.loops.size
        for number in (way.row_block, way.inner_block, way.warps):
            assert number == schedule.power_of_two(number) > 0
        assert way.row_block * way.inner_block <= 2 * limits.LONGEST_WHOLE_ROW
        assert way.warps <= 32
        assert {*way.rows, *way.inner} == kernel.domain
        if kernel.inner is not None:
            assert {*way.inner} == kernel.inner
            assert way.whole == (kernel.shares == 1 and way.inner_block >= size(kernel.inner))
            assert (way.grid[0] * way.row_block >= size(kernel.rows)) or kernel.summed
            assert way.grid[1] == kernel.shares


@pytest.mark.parametrize("length", [limits.LONGEST_WHOLE_ROW, limits.LONGEST_WHOLE_ROW + 1])
def test_rows_are_whole_up_to_the_limit(length):
    (launch,) = forward(lambda x: x.softmax(-1), rand(200, length)).launches
    assert launch.schedule.whole == (length <= limits.LONGEST_WHOLE_ROW)


@pytest.mark.parametrize(("number", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (17, 32), (1024, 1024), (1025, 2048)])
def test_power_of_two(number, power):
    assert schedule.power_of_two(number) == power


def test_a_number_that_triton_would_round_is_refused_before_any_call():
    with fuser.ENGINE.definition() as definition:
        x, number = (
            definition.define_tensor(
                sizes=sizes, strides=[1] * len(sizes), dtype=torch.float64, static_sizes=True, is_cpu=not sizes
            )
            for sizes in ([8], [])
        )
        definition.add_output(definition.ops.mul(x, number))
    with pytest.raises(aotkit.CompileError, match="a float64 number on the CPU"):
        _ = definition.execute

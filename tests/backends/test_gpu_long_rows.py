"""Long rows on a GPU, which hardly fit into its registers."""

import pytest
import torch
import torch.nn.functional as F

import aotkit
from aotkit.torch_private.kernel_changes.late_loads import loaded_late
from tests.sweeping import GPU_KIND

ROW = "tmp0 = tl.load(in_ptr0 + (r0_1 + 12288*x0), {mask}{policy}{other}).to(tl.float32)"
WEIGHT = "tmp1 = tl.load(in_ptr1 + (r0_1), {of_all}, eviction_policy='evict_last'{other}).to(tl.float32)"
REDUCED = [
    "tmp2 = r0_1 + 12288*x0",
    "tmp3 = tmp0 * tmp2.to(tl.float32)",
    "tmp4 = tl.sum(tmp3, 1)[:, None].to(tl.float32)",
    "tmp5 = tmp3 - tmp4",
    "tmp6 = tl.sum(tmp5, 1)[:, None].to(tl.float32)",
]
REST = ["tmp7 = tmp5 * tmp6", "tmp8 = tmp7 * tmp1 + tmp10", "tmp9 = tmp8 + {row}"]
MASKS = [
    {"mask": "r0_mask & xmask", "of_all": "r0_mask", "other": ", other=0.0"},
    {"mask": "None", "of_all": "None", "other": ""},
]


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("policy", ["", ", eviction_policy='evict_first'"])  # torch 2.11, and 2.13
def test_weights_and_rows_that_are_needed_again_are_loaded_late(masks, policy):
    weight = WEIGHT.format(**masks)
    loads = [ROW.format(policy=policy, **masks), weight, weight.replace("tmp1", "tmp10")]
    compute = [*REDUCED, *REST[:-1], REST[-1].format(row="tmp0")]
    first, rest = loaded_late(loads, compute, 10000, {"in_ptr0": 2, "in_ptr1": 2})
    assert first == [ROW.format(policy="", **masks)]
    again = ROW.format(policy=", eviction_policy='evict_first'", **masks).replace("tmp0", "tmp0_again")
    assert rest == [*REDUCED, REST[0], *loads[1:], REST[1], again, REST[2].format(row="tmp0_again")]


@pytest.mark.parametrize(
    ("width", "sizes", "last"),
    [
        (12288, {"in_ptr0": 2, "in_ptr1": 2}, REST[-1].format(row="tmp0")),  # they fit
        (12289, {"in_ptr0": 4, "in_ptr1": 2}, REST[-1].format(row="tmp0")),  # another program does not fit anyway
        (12289, {"in_ptr1": 2}, REST[-1].format(row="tmp0")),  # what the kernel stores to
        (20000, {"in_ptr0": 2, "in_ptr1": 2}, REST[-1].format(row="tmp8")),  # no row is needed again
        (12289, {"in_ptr0": 2, "in_ptr1": 2}, "    tmp9 = tmp8 + tmp0"),  # inside of a block
    ],
)
def test_other_rows_are_loaded_once_and_first(width, sizes, last):
    loads = [ROW.format(policy="", **MASKS[0]), WEIGHT.format(**MASKS[0])]
    compute = [*REDUCED, *REST[:-1], last]
    assert loaded_late(loads, compute, width, sizes) == (loads, compute)


def normalized(x, weight, bias):
    return x + F.layer_norm(F.dropout(x, 0.1), weight.shape, weight, bias)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_row_that_is_loaded_again_is_the_same(device, dtype):
    x, weight, bias = (torch.randn(*size, 12288, device=device, dtype=dtype) for size in ((512,), (), ()))
    compiled = aotkit.compile(normalized, backend="inductor")
    assert compiled(x, weight, bias).shape == x.shape  # and checked
    if device.type == "cuda":
        code = "".join(k.kernel.code for k in compiled.explain(x, weight, bias).kernels.kernels)
        assert "_again = tl.load(" in code


@pytest.mark.parametrize("rows", [(5,), *(pytest.param(rows, marks=GPU_KIND) for rows in ((3, 2), (64,)))])
def test_a_few_long_rows_are_reduced_in_parts(device, rows):
    x = torch.randn(*rows, 12288, device=device, requires_grad=True)
    weight = torch.randn(12288, device=device, requires_grad=True)
    targets = torch.randint(12288, rows, device=device)

    def loss(x, weight):
        y = F.layer_norm(x, weight.shape, weight)
        return F.cross_entropy(y.flatten(0, -2), targets.flatten()) + (x * y.softmax(-1)).amax(-1).sum()

    found = aotkit.compile(loss, backend="inductor")(x, weight)
    torch.testing.assert_close(found, loss(x, weight))
    found.backward()

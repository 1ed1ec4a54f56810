"""Every operator of the table, forward and backward. Not in bfloat16, in which the interpreter computes otherwise."""

import pytest
import torch

from tests.backends.fusion_cases import CASES, inputs_of
from tests.backends.interpreted.comparing import ENGINE, engine_for, train

# What is in bfloat16 there is not rounded between two operators.
TOLERANCES = {"casts": 1e-2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_aten(name, dtype):
    fn, args = inputs_of(name, dtype, "cpu")
    engine = engine_for(name) if dtype == torch.float32 else ENGINE
    assert train(fn, *args, tolerance=TOLERANCES.get(name), engine=engine)

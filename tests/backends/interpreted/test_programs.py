"""Random small regions against eager float64."""

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aotkit.backends.fusion_definition.region import Region
from aotkit.errors import CompileError
from tests.backends.interpreted.comparing import compiled
from tests.backends.interpreted.programs import Program

SETTINGS = {
    "deadline": None, "database": None, "derandomize": True, "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}  # fmt: skip


def equals_eager(data):
    torch.manual_seed(0)
    program = Program(data)
    try:
        region, gm = compiled(program, *program.inputs)
    except CompileError as e:
        if not isinstance(e.__cause__, CompileError):
            raise
        return  # regions that are cut elsewhere compute it
    if not isinstance(region, Region):
        return
    got, rounded = region(list(program.inputs)), gm(*program.inputs)
    expected = program(*(x.double() for x in program.inputs))
    for g, r, e in zip(got, rounded, expected, strict=True):
        assert (g.dtype, g.shape) == (r.dtype, r.shape), gm.code
        assert [s for n, s in zip(g.shape, g.stride(), strict=True) if n > 1] == [
            s for n, s in zip(r.shape, r.stride(), strict=True) if n > 1
        ], gm.code
        allowed = 1e-5 + 50 * (r - e).abs().max().item()
        assert (g - e).abs().max().item() <= allowed, gm.code


@settings(max_examples=25, **SETTINGS)
@given(st.data())
def test_random_programs_equal_eager(data):
    equals_eager(data)


@pytest.mark.sweep
@settings(max_examples=2000, **SETTINGS)
@given(st.data())
def test_many_random_programs_equal_eager(data):
    equals_eager(data)

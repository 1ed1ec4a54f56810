"""The battery of random_battery.py over 2^32 bits of what aotkit draws, and proof that it finds what is wrong."""

import pytest

from .random_battery import LAYOUTS, p_values


@pytest.mark.sweep
@pytest.mark.parametrize("layout", LAYOUTS)
def test_quality_over_2_to_the_32_bits(layout):
    assert min(p_values("aotkit", layout, 2**27).values()) > 1e-5


@pytest.mark.sweep
def test_the_battery_finds_fault_with_a_hash_of_two_multiplies():
    found = p_values("two multiplies", "one draw", 2**22)
    assert found["Hamming distance"] < 1e-20
    assert found["collisions"] < 1e-20

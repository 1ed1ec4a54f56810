"""For tests of what aotkit changes in how Inductor writes kernels: not where this version of torch has that off."""

import pytest

from aotkit.torch_private.kernel_changes import switched_off


def needs_change(name):
    """Skips a test where a change is off, with the reason that `aotkit doctor` gives."""
    reason = switched_off().get(name)
    return pytest.mark.skipif(reason is not None, reason=f"{name} is off: {reason}")

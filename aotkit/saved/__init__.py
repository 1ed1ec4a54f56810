"""A training step in a file: compiled in one process, run in another, without tracing.

`call` describes the call that was compiled, `probe` computes what is compared on loading, `archive` is the file, `step`
is what loading gives.
"""

from aotkit.saved.archive import read, write
from aotkit.saved.call import described, owner_of
from aotkit.saved.probe import integers_of, probed
from aotkit.saved.step import Step, loaded

__all__ = ["Step", "described", "integers_of", "loaded", "owner_of", "probed", "read", "write"]

"""Which node a compiler gets wrong: found after a failed check, and written as a script that reproduces it.

The reference is our own interpretation of the graphs, operator by operator. Parts of a compilation are replaced by it
until the check passes, which tells the wrong part; prefixes of that part's graph tell the node. Nothing here is
imported before a check fails.
"""

from aotkit.culprit.finding import find
from aotkit.culprit.result import Culprit
from aotkit.culprit.trials import replay

__all__ = ["Culprit", "find", "replay"]

"""Which node a compiler or a partitioner gets wrong: found after a failed check, with a script that reproduces it.

The reference is our own interpretation of the graphs, operator by operator. Parts of a compilation are replaced by it
until the check passes, which tells the wrong part; prefixes of that part's graph tell the node. Of
a joint graph that is cut wrongly, it is the node whose value differs in one of the two parts. Nothing here is
imported before a check fails.
"""

from aotkit.culprit.finding import find
from aotkit.culprit.replay import replay, replay_partition
from aotkit.culprit.result import Culprit

# How long the search may take that nobody asked for.
SECONDS = 20.0

__all__ = ["SECONDS", "Culprit", "find", "replay", "replay_partition"]

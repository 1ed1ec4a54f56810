"""Capture: a call of Python -> what it reads, guards that compare it, and a compilation for it.

`direct` traces a function as it is; `dynamo` lets TorchDynamo capture it. An `entry` is one compilation.
"""

from aotkit.capture.arguments import Parameters, flatten
from aotkit.capture.auto import BEST, cpp_compiler, default_backend
from aotkit.capture.direct import DirectFunction
from aotkit.capture.dynamo import DynamoFunction, Piece
from aotkit.capture.dynamo_backend import CapturedCompiler
from aotkit.capture.entry import Entry, Failure
from aotkit.capture.guards import HOOKS
from aotkit.capture.kept_graphs import KeptGraphs, as_data, graphs_from
from aotkit.capture.later import Check, require_check
from aotkit.capture.named import is_importable
from aotkit.capture.recipe import Randomness, Recipe, recipe_of
from aotkit.capture.refusals import EagerOnly, OwnError, why_later
from aotkit.capture.shared_random import SharedRandom
from aotkit.capture.together import FirstCall
from aotkit.capture.watching import TensorReads

__all__ = [
    "BEST",
    "HOOKS",
    "CapturedCompiler",
    "Check",
    "DirectFunction",
    "DynamoFunction",
    "EagerOnly",
    "Entry",
    "Failure",
    "FirstCall",
    "KeptGraphs",
    "OwnError",
    "Parameters",
    "Piece",
    "Randomness",
    "Recipe",
    "SharedRandom",
    "TensorReads",
    "as_data",
    "cpp_compiler",
    "default_backend",
    "flatten",
    "graphs_from",
    "is_importable",
    "recipe_of",
    "require_check",
    "why_later",
]

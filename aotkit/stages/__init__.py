"""The stages of a compilation: joint graph -> joint pass -> cut -> compiled forward and backward graphs.

`pipeline` goes through them; `calls` is how what plug-ins provide is called.
"""

from aotkit.stages.calls import Blame, Product, boxed_call, callable_of, checked_once, results_of
from aotkit.stages.pipeline import Pipeline

__all__ = [
    "Blame",
    "Pipeline",
    "Product",
    "boxed_call",
    "callable_of",
    "checked_once",
    "results_of",
]

"""What `compile` returns: functions, methods and modules whose calls run compiled graphs, and what explains them.

`compiler` has `compile` itself: read it first.
"""

from aotkit.compiled.compiler import Capture, compile
from aotkit.compiled.function import CompiledFunction
from aotkit.compiled.modules import CompiledModule, function_of

__all__ = [
    "Capture",
    "CompiledFunction",
    "CompiledModule",
    "compile",
    "function_of",
]

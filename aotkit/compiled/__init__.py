"""`compile`, and what it returns: functions, methods and modules that run compiled graphs, and what explains them.

Read `compiler` first.
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

"""What `compile` returns: functions, methods and modules whose calls run compiled graphs, and what explains them."""

from aotkit.compiled.function import Capture, CompiledFunction, OnError, options_of
from aotkit.compiled.modules import CompiledModule, compile_module, function_of

__all__ = [
    "Capture",
    "CompiledFunction",
    "CompiledModule",
    "OnError",
    "compile_module",
    "function_of",
    "options_of",
]

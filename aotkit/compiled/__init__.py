"""What `compile` returns: functions, methods and modules that run compiled graphs, and what explains them."""

from aotkit.compiled.explanation import Explanation
from aotkit.compiled.function import CompiledFunction
from aotkit.compiled.modules import CompiledModule, compile_module, function_of, uncompiled

__all__ = [
    "CompiledFunction",
    "CompiledModule",
    "Explanation",
    "compile_module",
    "function_of",
    "uncompiled",
]

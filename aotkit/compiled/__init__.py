"""What `compile` returns: functions, methods and modules that run compiled graphs, and what explains them."""

from aotkit.compiled.callables import compile_callable
from aotkit.compiled.explanation import Explanation
from aotkit.compiled.function import CompiledFunction
from aotkit.compiled.modules import CompiledModule, function_of, uncompiled

__all__ = [
    "CompiledFunction",
    "CompiledModule",
    "Explanation",
    "compile_callable",
    "function_of",
    "uncompiled",
]

"""Room for the frames of what a graph calls.

CPython keeps the frames of a thread in chunks of 16 KiB. Where a frame ends close to the end of its chunk, each call
out of it maps a new chunk and unmaps it afterwards: on a virtual machine, 700 such calls took 7.6 ms instead of 0.04.
Whether a graph is hit depends on how deep the stack is (python/cpython#142183; late releases of 3.13 and 3.14 keep a
chunk).
"""

import re
from types import FunctionType, MethodType

CHUNK = 16 * 1024 // 8  # in slots of frames, which are pointers
# Kernels that Triton launches and PyTorch's operators enter functions in Python; all else that a graph calls is in C.
ENTERS_PYTHON = re.compile(r"(\.run|\btorch\.ops\.[\w.]+)\(")
# To begin a chunk takes as long as one call that is hit, 8 us, and about one frame in twenty is.
FEW_CALLS = 32


def with_room_for_calls(method: MethodType, source: str) -> MethodType:
    """The same code as a method of the same object, whose frame begins a chunk if it enters Python often.

    CPython leaves room for 1000 slots behind a frame that begins a chunk.

    Args:
        source: of the method.
    """
    if len(ENTERS_PYTHON.findall(source)) < FEW_CALLS:
        return method
    function = method.__func__
    code = function.__code__
    roomy = FunctionType(
        code.replace(co_stacksize=code.co_stacksize + CHUNK),  # more than what is left of a chunk of the usual size
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    roomy.__dict__.update(function.__dict__)
    return MethodType(roomy, method.__self__)

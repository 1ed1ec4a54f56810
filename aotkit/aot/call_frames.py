"""Room for the frames of what a generated function calls.

CPython keeps the frames of a thread in chunks of 16 KiB. Where a frame ends close to the end of its chunk, each call
out of it maps a new chunk and unmaps it afterwards: on a virtual machine, 700 such calls took 7.6 ms instead of 0.04.
Whether a graph is hit depends on how deep the stack is (python/cpython#142183; late releases of 3.13 and 3.14 keep a
chunk).
"""

import dis
from types import FunctionType, MethodType

CHUNK = 16 * 1024 // 8  # in slots of frames, which are pointers
CALLS = [code for name, code in dis.opmap.items() if name in ("CALL", "CALL_KW")]
FEW_CALLS = 32  # to begin a chunk takes as long as one call that is hit, and about one frame in twenty is


def with_room_for_calls(method: MethodType) -> MethodType:
    """The same method of the same object, whose frame begins a chunk of its own if it makes many calls.

    CPython leaves room for 1000 slots behind a frame that begins a chunk.
    """
    function = method.__func__
    code = function.__code__
    operations = code.co_code[::2]
    if sum(map(operations.count, CALLS)) < FEW_CALLS:
        return method
    roomy = FunctionType(
        code.replace(co_stacksize=code.co_stacksize + CHUNK),  # does not fit into what is left of any other chunk
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    roomy.__dict__.update(function.__dict__)
    return MethodType(roomy, method.__self__)

"""Print each graph once, then run it as it is."""

import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

from torch import Tensor
from torch.fx import GraphModule

from aotkit.interfaces import GraphCompiler


def to(stream: IO[str]) -> GraphCompiler:
    """The same backend, printing to `stream`: `backend=aotkit.backends.print.to(sys.stderr)`."""

    def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        print(gm.print_readable(print_output=False, include_stride=False), file=stream)
        return gm

    return compile_graph


def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Print the graph's Python code, with shapes and source lines, to standard output."""
    return to(sys.stdout)(gm, example_inputs)

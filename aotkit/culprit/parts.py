"""The graphs of one compilation, with the inputs that they got in a run of the reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from aotkit.checking import copy_inputs
from aotkit.culprit.reference import Reference
from aotkit.interfaces import Backend, GraphCompiler
from aotkit.passes import copy_graph
from aotkit.random import random_states


@dataclass
class Part:
    """One graph that a backend compiles.

    Attributes:
        name: "forward graph" or "backward graph".
        gm: the graph as the compiler gets it.
        compiler: the attribute of the backend that has the compiler.
        inputs: copies of what it was called with.
        random: the states of the random generators then.
    """

    name: str
    gm: GraphModule
    compiler: str
    inputs: list[Tensor] = field(default_factory=list)
    random: list[Tensor] = field(default_factory=list)


class Recorder:
    """Takes the place of a backend: runs graphs by the reference, and records their inputs.

    Attributes:
        parts: by the name of the backend's attribute.
    """

    def __init__(self) -> None:
        self.parts: dict[str, Part] = {}

    def backend(self, backend: Backend, keep_forward: bool = False) -> Backend:
        """A backend that treats the joint graph as the given one does, and takes the place of its compilers.

        Args:
            keep_forward: only of that for the backward graph.
        """
        backend = replace(backend, bw_compiler=self._compiler("bw_compiler"))
        if keep_forward:
            return backend
        return replace(
            backend,
            fw_compiler=self._compiler("fw_compiler"),
            inference_compiler=self._compiler("inference_compiler"),
        )

    def _compiler(self, attribute: str) -> GraphCompiler:
        name = "backward graph" if attribute == "bw_compiler" else "forward graph"

        def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
            part = self.parts[attribute] = Part(name, copy_graph(gm), attribute)

            def run(*inputs: Tensor) -> Any:
                if not part.inputs:
                    # One by one, so that none shares memory with another: compilers may rely on that.
                    part.inputs = [copy_inputs([x.detach()])[1][0] for x in inputs]
                    part.random = random_states()
                return Reference(gm, part.inputs).run(*inputs)

            return run

        return compile_graph


def compiler_of(backend: Backend, attribute: str) -> GraphCompiler:
    """The compiler that a backend uses for a part."""
    return getattr(backend, attribute) or backend.fw_compiler

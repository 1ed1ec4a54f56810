"""The graphs of one compilation, with the inputs that they got in a run of the reference."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from aotkit.checking import copy_inputs
from aotkit.interfaces import Backend, GraphCompiler
from aotkit.passes import copy_graph
from aotkit.random import random_states


class Reference(Interpreter):
    """Runs a graph's operators, one by one, in eager mode.

    Args:
        kept: nodes whose values are to be kept.
        keep: what of a value is kept; all of it by default.

    Attributes:
        values: of the kept nodes, after a run.
    """

    def __init__(
        self, gm: GraphModule, kept: Iterable[Node] = (), keep: Callable[[Any], Any] = lambda value: value
    ) -> None:
        super().__init__(gm)
        self._kept = set(kept)
        self._keep = keep
        self.values: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n in self._kept:
            self.values[n] = self._keep(value)
        return value


@dataclass
class Part:
    """One graph of a compilation.

    Attributes:
        name: "forward graph", "backward graph" or "joint graph".
        gm: the graph as its compiler or partitioner gets it.
        inputs: copies of what it was called with.
        random: the states of the random generators then.
        compiler: the attribute of the backend that has its compiler.
    """

    name: str
    gm: GraphModule
    inputs: list[Tensor] = field(default_factory=list)
    random: list[Tensor] = field(default_factory=list)
    compiler: str = ""

    @property
    def names(self) -> list[str]:
        """Of the inputs."""
        return input_names(self.gm)

    def inputs_by_name(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.inputs, strict=True))


class Recorder:
    """Takes the place of a backend: runs graphs by the reference, and records their inputs.

    Attributes:
        parts: by the name of the backend's attribute.
    """

    def __init__(self) -> None:
        self.parts: dict[str, Part] = {}

    def backend(self, backend: Backend, keep_forward: bool = False) -> Backend:
        """The same backend with this in place of its compilers, or of that for the backward graph alone."""
        compiler = self._compiler
        backend = replace(backend, bw_compiler=compiler("bw_compiler"))
        if keep_forward:
            return backend
        return replace(backend, fw_compiler=compiler("fw_compiler"), inference_compiler=compiler("inference_compiler"))

    def _compiler(self, attribute: str) -> GraphCompiler:
        name = "backward graph" if attribute == "bw_compiler" else "forward graph"

        def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
            part = self.parts[attribute] = Part(name, copy_graph(gm), compiler=attribute)

            def run(*inputs: Tensor) -> Any:
                if not part.inputs:
                    part.inputs = copies_apart([x.detach() for x in inputs])
                    part.random = random_states()
                return Reference(gm).run(*inputs)

            return run

        compile_graph.runs_chunks = True  # type: ignore[attr-defined]
        return compile_graph


def input_names(gm: GraphModule) -> list[str]:
    """The names of a graph's inputs."""
    return [n.name for n in gm.graph.find_nodes(op="placeholder")]


def copies_apart(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies of which none shares memory with another: compilers may rely on that."""
    return [copy_inputs([tensor])[1][0] for tensor in tensors]


def compiler_of(backend: Backend, attribute: str) -> GraphCompiler:
    """The compiler that a backend uses for a part."""
    return getattr(backend, attribute) or backend.fw_compiler

"""The record of the graphs of one compilation, and what shows it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule

from aotkit import view
from aotkit.inspection.data import as_json
from aotkit.inspection.text import render_html, render_markdown, render_text
from aotkit.passes import Regions

if TYPE_CHECKING:
    from aotkit.launches import Kernels


@dataclass
class Graphs:
    """Copies of the graphs of one compilation, taken before any compiler touched them.

    A call without gradients has a forward graph only.

    Attributes:
        name: the compiled function's.
        backend: the backend's name.
        partition: the partitioner's name.
        forward: computes `num_outputs` values (mutated inputs first, then the outputs), then the saved ones.
        backward: from saved values and tangents to the gradients of the inputs.
        joint: what the partitioner was given.
        num_outputs: how many outputs of `forward` are not saved values.
        input_names: one for each placeholder of `forward`: `x`, `layer.weight`, ...
        regions: "forward" and "backward" -> how that graph is divided, if it is.
        kernels: what they launch; None where nobody has asked: `CompiledFunction.explain(...).graphs` have it.
        backward_inputs: what the backward graph was compiled for, once it is.
        why_backend: what was chosen of backend "auto", and why; "" where another was asked for.
    """

    name: str
    backend: str
    partition: str
    forward: GraphModule
    joint: GraphModule | None = None
    backward: GraphModule | None = None
    num_outputs: int = 0
    input_names: Sequence[str] = ()
    regions: Mapping[str, Regions] = field(default_factory=dict)
    kernels: "Kernels | None" = None
    backward_inputs: Sequence[Any] = ()
    why_backend: str = ""

    def __str__(self) -> str:
        return render_text(self)

    def _repr_markdown_(self) -> str:
        return render_markdown(self)

    def _repr_html_(self) -> str:
        return view.render_output(self.json(), render_html(self))

    def json(self) -> dict[str, Any]:
        """The same as plain data, of schema 1: see `aotkit/view/schema.py`."""
        return as_json(self)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the viewer with these graphs as one file, which needs no network: for a browser, or to send."""
        Path(path).write_text(view.render_page(self.json()), encoding="utf-8")

    def dot(self) -> str:
        """Both graphs in Graphviz' language."""
        return view.render_dot(self.json())

    def mermaid(self) -> str:
        """Small graphs as a flowchart of Mermaid's, which GitHub and notebooks show.

        Raises:
            ValueError: they have more than 100 nodes.
        """
        return view.render_mermaid(self.json())

    def model_explorer(self) -> dict[str, Any]:
        """What Google's Model Explorer shows, once `json.dump` has written it to a file."""
        return view.model_explorer(self.json())

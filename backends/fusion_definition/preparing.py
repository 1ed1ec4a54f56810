"""What is done to a graph before it is cut, by backends that leave products of matrices to ATen."""

from typing import Any

from torch.fx import GraphModule

from aotkit.backends.fusion_definition.copies import drop_copies
from aotkit.backends.fusion_definition.padded_products import pad_products
from aotkit.backends.fusion_definition.permutations import merge_permutations
from aotkit.backends.fusion_definition.wide_products import widen_products


def prepare(gm: GraphModule, inputs: Any = None) -> None:
    """A joint pass."""
    drop_copies(gm)
    merge_permutations(gm)
    pad_products(gm)
    widen_products(gm)

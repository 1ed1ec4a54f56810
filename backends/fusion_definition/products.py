"""What is done for products of matrices by backends that leave them to ATen."""

from typing import Any

from torch.fx import GraphModule

from aotkit.backends.fusion_definition.padded_products import pad_products
from aotkit.backends.fusion_definition.permutations import merge_permutations
from aotkit.backends.fusion_definition.wide_products import widen_products


def prepare_products(gm: GraphModule, inputs: Any = None) -> None:
    """A joint pass."""
    merge_permutations(gm)
    pad_products(gm)
    widen_products(gm)

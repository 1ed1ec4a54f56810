"""What is done for products of matrices by backends that leave them to ATen."""

from typing import Any

from torch.fx import GraphModule

from aotkit.backends.fusion_definition.padded_products import pad_products
from aotkit.backends.fusion_definition.wide_products import widen_products


def prepare_products(gm: GraphModule, inputs: Any = None) -> None:
    """A joint pass."""
    pad_products(gm)
    widen_products(gm)

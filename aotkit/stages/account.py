"""What compiled graphs are, as texts: all that decides what they compute."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from aotkit.passes import description
from aotkit.stages.calls import Product


def account(products: Mapping[str, Product]) -> Sequence[str] | None:
    """Digests of the graphs, and of all code that runs for them; None where a compiler does not tell that."""
    texts = [text for role in sorted(products) for text in (role, *_texts(products[role]))]
    return None if None in texts else [hashlib.sha256(str(text).encode()).hexdigest() for text in texts]


def _texts(product: Product) -> tuple[str | None, str | None]:
    return description(product.graph), _source(product.run)


def _source(run: Any) -> str | None:
    if isinstance(run, GraphModule):
        return description(run)
    # What wraps another function has the attributes of that, and code of its own.
    return None if hasattr(run, "__wrapped__") else getattr(run, "source", None)

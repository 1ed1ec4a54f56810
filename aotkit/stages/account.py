"""What compiled graphs are, as texts: all that decides what they compute."""

import hashlib
from collections.abc import Mapping, Sequence

from aotkit.passes import description
from aotkit.stages.calls import Product
from aotkit.stages.graph_launches import source_of


def account(products: Mapping[str, Product]) -> Sequence[str] | None:
    """Digests of the graphs, and of all code that runs for them; None where a compiler does not tell that."""
    texts = [text for role in sorted(products) for text in (role, *_texts(products[role]))]
    return None if None in texts else [hashlib.sha256(str(text).encode()).hexdigest() for text in texts]


def _texts(product: Product) -> tuple[str | None, str | None]:
    return description(product.graph), source_of(product)

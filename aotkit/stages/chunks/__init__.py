"""Losses of rows as long as a vocabulary, computed of some rows at a time where that lowers the peak of memory.

`finding` looks for what can be, by the rules of `rows`; `late` takes out of it the gradient of the loss, so that the
gradients of rows are computed when the rows are there; `rewriting` puts one operation in its place, `in_chunks`.
`choosing` says where that pays off, and how many rows are computed at a time; `compiling` has it compiled.
"""

from aotkit.stages.chunks.choosing import compute_in_chunks
from aotkit.stages.chunks.compiling import compile_with_chunks, load_with_chunks

__all__ = ["compile_with_chunks", "compute_in_chunks", "load_with_chunks"]

"""Compiles the kernel of n-grams for an H100, without one: `python -m tests.nn.interpreted.compiled`."""

import sys

import torch

from aotkit.nn import FusedNoRepeatNGram


def main():
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from aotkit.nn.ngram_kernel import NUMBERS, kernel

    for of_scores in ("fp32", "bf16", "fp16"):
        pointers = {"scores": f"*{of_scores}", "windows": "*i64", "ids": "*i32"}
        source = ASTSource(fn=kernel, signature={**pointers, **dict.fromkeys(NUMBERS, "i32")}, constexprs={})
        triton.compile(source, target=GPUTarget("cuda", 90, 32))


if __name__ == "__main__":
    FusedNoRepeatNGram(2)(torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 4))
    assert not {"triton", "transformers"} & {*sys.modules}
    main()

"""Compiles the kernel of n-grams for an H100, without one: `python -m tests.nn.interpreted.compiled`."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from aotkit.nn.ngram_kernel import NUMBERS, kernel

SCORES = ("fp32", "bf16", "fp16")


def main():
    for of_scores in SCORES:
        pointers = {"scores": f"*{of_scores}", "windows": "*i64", "ids": "*i32"}
        signature = {**pointers, **dict.fromkeys(NUMBERS, "i32")}
        source = ASTSource(fn=kernel, signature=signature, constexprs={})
        triton.compile(source, target=GPUTarget("cuda", 90, 32))


if __name__ == "__main__":
    main()

"""The backend `fuser`: its kernels in C++, and those in Triton by its interpreter, and on a GPU where there is one."""

import ast
import importlib.util
from pathlib import Path

import pytest
import torch

import aotkit
from aotkit.backends.fuser import triton_code
from aotkit.backends.fuser.operations import OPERATIONS, REDUCTIONS
from tests.backends.fusion_cases import CASES, inputs_of
from tests.source_names import is_private, names_used
from tests.with_triton import run

ROOT = Path(__file__).resolve().parents[2]
FUSER = Path(aotkit.__file__).parent / "backends" / "fuser"
TESTS = sorted(map(str, (ROOT / "tests" / "backends" / "interpreted").glob("test_*.py")))
QUICK = str(ROOT / "tests" / "backends" / "interpreted" / "test_fusion_cases.py")  # a few of its cases


def test_its_kernels_in_the_interpreter():
    run("pytest", "-q", "-p", "no:cacheprovider", QUICK, TRITON_INTERPRET="1")


@pytest.mark.sweep
@pytest.mark.parametrize("way", [{"TRITON_INTERPRET": "1"}, {}], ids=["interpreter", "C++"])
@pytest.mark.parametrize("test", TESTS, ids=lambda path: Path(path).stem)
def test_all_its_kernels(test, way):
    run("pytest", "-q", "-p", "no:cacheprovider", "-m", "sweep or not sweep", test, **way)


@pytest.mark.sweep
def test_its_kernels_compile_for_a_gpu_that_is_not_there(tmp_path):
    cases = ("cross_entropy",)
    count = run("tests.backends.interpreted.compiled", *cases, TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
    assert int(count) > 4 * len(cases)


@pytest.mark.parametrize("path", sorted(FUSER.glob("*.py")), ids=lambda path: path.name)
def test_private_names_are_not_used(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [n for root in ("torch", "triton") for n in names_used(tree, path, root) if not n.startswith("torch.ops.")]
    assert [n for n in names if is_private(n)] == []


def test_private_names_are_not_in_its_code():
    texts = [triton_code.HEADER, *map("x = {}".format, OPERATIONS.values())]
    texts += ["x = " + text for _, *more in REDUCTIONS.values() for text in more]
    for text in texts:
        names = [n.attr for n in ast.walk(ast.parse(text.replace("{", "").replace("}", ""))) if hasattr(n, "attr")]
        assert [n for n in names if n.startswith("_")] == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_eager(name, dtype):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    fn, args = inputs_of(name, dtype, "cuda")
    assert aotkit.check(fn, *args, backend=aotkit.by_region("fuser", strict=True, min_region_size=1)).passed

"""The examples conform, and are what the documentation shows of them."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.with_triton import run

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
MOST_LINES = 60  # of code


def code_lines(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith(('"""', "#"))]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_it_is_short(path):
    assert len(code_lines(path)) <= MOST_LINES


def test_the_page_shows_the_one_with_numba():
    page = (ROOT / "docs" / "write_a_backend.md").read_text(encoding="utf-8")
    assert (EXAMPLES / "fuse_with_numba.py").read_text(encoding="utf-8") in page


@pytest.mark.sweep
def test_numba_conforms():
    if find_spec("numba") is None:
        pytest.skip("numba is not installed: pip install numba")
    run("tests.conforming", str(EXAMPLES / "fuse_with_numba.py"))


@pytest.mark.sweep
def test_triton_conforms():
    run("tests.conforming", str(EXAMPLES / "fuse_with_triton.py"), TRITON_INTERPRET="1")

"""The code in docs/ runs, and what it links to exists."""

import re
from pathlib import Path

import pytest

import aotkit

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, capsys):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)
    assert capsys.readouterr().out


def test_the_options_of_by_region_exist():
    text = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    for options in re.findall(r'aotkit\.by_region\("nvfuser", (.*?)\)`', text):
        assert callable(eval(f"aotkit.by_region('nop', {options})", {"aotkit": aotkit}).fw_compiler)
    assert f"[docs/explain.md](docs/{PAGES[0].name})" in (ROOT / "README.md").read_text(encoding="utf-8")

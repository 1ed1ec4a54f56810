"""Private names of torch: each is in the table, and each file of the folder is for one part of torch."""

import pytest

from . import private_names
from .private_names import FOLDER

FILES = sorted(FOLDER.glob("*.py"))
MOST_FILES = 16


def test_the_table_is_that_of_the_code():
    """`make private-names` writes it, once with each version of torch."""
    assert private_names.known().keys() == private_names.uses().keys()
    assert private_names.text(private_names.known()) == private_names.TABLE.read_text(encoding="utf-8")


def test_the_column_of_this_torch_is_right():
    version = private_names.version()
    told = {name: row[version] for name, row in private_names.known().items() if version in row}
    if not told:
        pytest.skip(f"the table has no column for torch {version}")
    assert {name: private_names.cell(name) for name in told} == told


def test_there_is_a_file_for_each_part_of_torch():
    assert len(FILES) <= MOST_FILES


@pytest.mark.parametrize("path", [p for p in FILES if p.name != "__init__.py"], ids=lambda p: p.stem)
def test_each_file_touches_private_names(path):
    used = {place.partition(".")[0] for places in private_names.uses().values() for place in places}
    assert path.stem in used, "nothing in it is private: it belongs to the stage that uses it"

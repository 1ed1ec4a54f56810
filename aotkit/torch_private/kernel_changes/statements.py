"""The statements of a Triton kernel, as Inductor collects them: text, or objects whose text is not finished yet."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

ALONG_ROW = re.compile(r"\b(r\d_|R\d_|rindex|RBLOCK|roffset)")
# Of a row's columns, wherever the row is.
LOAD_OF_ALL_ROWS = re.compile(r"tmp\d+ = tl\.load\(\w+ \+ \(r0_\d+\), (None|r0_mask), .*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_DEFINITION = re.compile(r"(?P<names>\w+(, \w+)*) = ")


def texts_of(lines: Sequence[Any]) -> list[str] | None:
    """One for each; None if some are of another kind, or inside of a block."""
    texts = [line if isinstance(line, str) else getattr(line, "line", " ") for line in lines]
    return None if any(text[:1].isspace() for text in texts) else texts


def made_by(statement: str) -> set[str]:
    """The values it computes."""
    return set(_NAME.findall(found["names"])) if (found := _DEFINITION.match(statement)) else set()


def names_in(statement: str) -> set[str]:
    return set(_NAME.findall(statement))


def renamed(statement: str, names: Mapping[str, str]) -> str:
    """With other names for these."""
    return _NAME.sub(lambda found: names.get(found[0], found[0]), statement)

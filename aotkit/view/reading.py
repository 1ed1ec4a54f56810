"""Graphs that were written as JSON, read without torch."""

import json
import math
import os
from pathlib import Path
from typing import Any, NoReturn

from aotkit.view.schema import ADVICE, require_graphs


def read_graphs(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `json.dump(graphs.json(), file)` wrote: the data that `aotkit/view/model.py` describes.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no graphs, or those of another schema, or damaged ones: the message says where.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as e:
        raise OSError(f"{path} cannot be read: {e.strerror}. {ADVICE}") from e
    except ValueError as e:
        raise ValueError(f"{path} is no JSON: it is not UTF-8. {ADVICE}") from e
    try:
        data = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{path} is no JSON: {e if text else 'it is empty'}. {ADVICE}") from e
    require_graphs(data, str(path))
    found: dict[str, Any] = data
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value

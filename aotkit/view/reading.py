"""Graphs that were written as JSON, read without torch."""

import json
import os
from pathlib import Path
from typing import Any

SCHEMA = 1


def read_graphs(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `json.dump(graphs.json(), file)` wrote: the data that `aotkit/view/model.py` describes.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no graphs, or those of another schema.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as e:
        raise ValueError(f"{path} is no JSON: {e}. {_ADVICE}") from e
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not {"name", "nodes", "saved"} <= data.keys():
        raise ValueError(f"{path} holds no graphs of schema {SCHEMA}. {_ADVICE}")
    return data


_ADVICE = "Write one by json.dump(graphs.json(), file)."

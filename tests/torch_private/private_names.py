"""The table of torch's private names in aotkit/torch_private/names.md: `python -m tests.torch_private.private_names`.

It says of each name where it is used, and in which versions of torch it is there. A run fills in the column of the
torch that runs it, and keeps the others as they are.
"""

import ast
import importlib
import warnings
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import torch

from tests.source_names import heads, imports, inside, is_private, names_in

FOLDER = Path(__file__).resolve().parents[2] / "aotkit/torch_private"
TABLE = FOLDER / "names.md"
HEAD = """# torch's private names

Each private name of torch that aotkit uses, where it is used, and in which versions of torch it is there.
`make private-names` writes this file; it fills in the column of the torch that is installed.
"""
PACKAGES = ("torch", "functorch")
WITH_CUDA = "with CUDA"  # only in builds for it


def version() -> str:
    """The torch that runs this, without its patch level."""
    return ".".join(torch.__version__.split(".")[:2])


def uses() -> dict[str, list[str]]:
    """Private name -> where it is used, as `file.function`."""
    found = defaultdict[str, dict[str, None]](dict)
    for path in sorted(FOLDER.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_file = heads(imports(ast.walk(tree), path))
        module = ".".join(path.relative_to(FOLDER).with_suffix("").parts).removesuffix(".__init__")
        for owner in tree.body:
            if isinstance(owner, ast.Import | ast.ImportFrom):
                continue
            place = f"{module}.{name}" if (name := getattr(owner, "name", "")) else module
            known = of_file | heads(imports(ast.walk(owner), path))
            for full in names_in(owner, known, whole=True):
                if inside(full, PACKAGES) and is_private(full) and not inside(full, ["torch.ops"]):  # those are public
                    found[_cut(full)][place] = None
    return {name: [*found[name]] for name in sorted(found)}


def _cut(name: str) -> str:
    """Up to a class and an attribute of it: what an object has cannot be looked up."""
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part[0].isupper():
            return ".".join(parts[: i + 1 if len(part) == 1 else i + 2])
    return name


def is_there(name: str) -> bool:
    """Whether the torch that runs this has a name."""
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            with warnings.catch_warnings(action="ignore"):
                found = importlib.import_module(".".join(parts[:i]))
        except ImportError:
            continue
        for part in parts[i:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def known() -> dict[str, dict[str, str]]:
    """Name -> version -> what the table says."""
    lines = [line.strip("|").split("|") for line in TABLE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    rows = [[cell.strip() for cell in line] for line in lines]
    return {row[0].strip("`"): dict(zip(rows[0][2:], row[2:], strict=True)) for row in rows[2:]}


def text(there: Mapping[str, Mapping[str, str]]) -> str:
    """The table."""
    columns = sorted({v for row in there.values() for v in row}, key=lambda v: [*map(int, v.split("."))])
    rows = [["name", "used in", *columns], ["---", "---", *([":-:"] * len(columns))]]
    for name, places in uses().items():
        rows.append([f"`{name}`", ", ".join(places), *(there[name].get(c, "?") for c in columns)])
    return HEAD + "\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def cell(name: str) -> str:
    """What the table says of a name, for the torch that runs this."""
    if "_cuda_" in name and torch.version.cuda is None:
        return WITH_CUDA
    return (WITH_CUDA if "_cuda_" in name else "yes") if is_there(name) else "-"


def updated() -> str:
    """The table as it has to be."""
    before = known() if TABLE.exists() else {}
    return text({name: {**before.get(name, {}), version(): cell(name)} for name in uses()})


if __name__ == "__main__":
    TABLE.write_text(updated(), encoding="utf-8")

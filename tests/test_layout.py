"""The rules that keep aotkit small and its parts exchangeable: who may import what, and how long things may grow."""

import ast
import functools
import graphlib
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import aotkit
from tests.source_names import imports, inside, is_private, names_used

ROOT = Path(__file__).resolve().parents[1]
# Follows the links aotkit/backends and aotkit/partitioners: aotkit/backends/nop.py is the module aotkit.backends.nop.
WALK = [(Path(folder).relative_to(ROOT), names) for folder, _, names in os.walk(ROOT / "aotkit", followlinks=True)]
FILES = sorted(folder / name for folder, names in WALK for name in names if name.endswith(".py"))
MODULES = {f: ".".join(f.with_suffix("").parts).removesuffix(".__init__") for f in FILES}
TOP = [f for f in FILES if f.parent == Path("aotkit")]
# The floors of the house, from the ground up: a folder, or a file at the top, imports from floors below its own alone.
FLOORS = (
    ("errors", "interfaces", "random", "text", "torch_private"),
    ("keep", "passes", "runtime", "timeline", "view"),
    ("checking", "inspection", "joint", "stages"),
    ("backends", "culprit", "partitioners", "registry"),
    ("capture", "launches"),
    ("saved",),
    ("compiled",),
    ("tuning",),
    ("compiler",),
    ("api", "nn", "testing"),
    ("fusing",),
    ("benchmark",),
    ("cli", "__init__"),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# Folders with one door: what others import of them stands in the `__all__` of their `__init__.py`.
DOORS = (
    "capture", "checking", "compiled", "culprit", "inspection", "joint", "keep", "launches", "passes", "random",
    "runtime", "saved", "stages", "text", "timeline", "tuning", "view",
)  # fmt: skip
# What programs import that `culprit` writes.
WRITTEN = {"aotkit.culprit.replay", "aotkit.culprit.replay_partition"}
OUTSIDE_THE_CORE = (
    "backends", "benchmark", "cli", "culprit", "partitioners", "testing", "torch_private",
    "view",
)  # fmt: skip
CORE = [f for f in FILES if f.parts[1] not in OUTSIDE_THE_CORE]
BACKENDS = [f for f in FILES if f.parent == Path("aotkit/backends")]
# Parts of backends: no plug-ins themselves.
BACKEND_FOLDERS = {f.parent.name for f in FILES if f.parent.parent == Path("aotkit/backends")}
EXAMPLES = [
    *(f.relative_to(ROOT) for f in sorted((ROOT / "notebooks").glob("*.ipynb"))),
    Path("tests/plugin/aotkit_example.py"),
]
# Public besides aotkit.__all__.
SUBPACKAGES = {"backends", "benchmark", "culprit", "fusing", "inspection", "partitioners", "testing", "view"}
PRIVATE_NAMES_ALLOWED = Path("aotkit/torch_private")
MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 350
MAX_FILES_AT_THE_TOP = 10
MAX_CORE_LINES = 1000


def each(files):
    """A test of one file, for all files of a folder at a time: thousands of tests take as long to collect as to run."""
    folders: dict[Path, list[Path]] = {}
    for path in files:
        folders.setdefault(path.parent, []).append(path)

    def of_folders(test):
        def of_folder(folder):
            for path in folders[folder]:
                test(path)

        of_folder.__doc__ = test.__doc__
        return pytest.mark.parametrize("folder", folders, ids=str)(of_folder)

    return of_folders


@functools.cache
def parse(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = ["".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
        text = "\n".join(re.sub(r"^[%!].*$", "", cell, flags=re.MULTILINE) for cell in cells)
    return ast.parse(text, filename=str(path))


def run(node, functions=True):
    """The nodes below `node` that ever run: not those for type checkers. Without functions: when it is imported."""
    for child in ast.iter_child_nodes(node):
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if (function and not functions) or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            continue
        yield child
        yield from run(child, functions)


def imported_names(nodes, path):
    return sorted({full for _, full in imports(nodes, path)})


def assert_none(names, advice):
    assert not names, f"{', '.join(names)}: {advice}"


@each(CORE)
def test_the_core_meets_plugins_and_heavy_packages_only_when_asked(path):
    banned = ["aotkit.backends", "aotkit.partitioners", "networkx", "torch._inductor", "IPython"]
    names = imported_names(run(parse(path), functions=False), path)
    assert_none([n for n in names if inside(n, banned)], "import it inside the function that needs it")


def room_of(module):
    """The folder of aotkit, or the file at its top, in which a module is."""
    room = [*module.split("."), "__init__"][1]
    return "cli" if room == "__main__" else room  # which only calls it


@functools.cache
def modules_imported(path):
    """Modules of aotkit that a file imports when it runs, in functions, too."""
    known, found = {*MODULES.values()}, set()
    for full in imported_names(run(parse(path)), path):
        module = full if full in known else full.rpartition(".")[0]
        if module == "aotkit":
            module = "" if full == "aotkit.__version__" else "aotkit.api"
        found |= {module} & known
    return found


@functools.cache
def own_names_used(path):
    return names_used(parse(path), path, "aotkit")


@each(FILES)
def test_imports_go_one_way(path):
    room = room_of(MODULES[path])
    rooms = {module: room_of(module) for module in modules_imported(path)}
    above = [m for m, other in rooms.items() if other != room and FLOOR_OF[other] >= FLOOR_OF[room]]
    assert_none(above, f"{room} is on floor {FLOOR_OF[room]}: take it from below, or move what both need there")


@each(FILES)
def test_a_folder_is_entered_by_its_door(path):
    for full in imported_names(ast.walk(parse(path)), path):
        other, _, name = full.removeprefix("aotkit.").partition(".")
        if full.startswith("aotkit.") and other in DOORS and other != room_of(MODULES[path]) and name:
            names = importlib.import_module(f"aotkit.{other}").__all__
            assert name in names, f"{full}: import it from aotkit.{other}, and list it there if others need it"


@functools.cache
def documented():
    """The names in the reference: users may use them."""
    found = set()
    for page in (ROOT / "docs" / "reference").glob("*.rst"):
        module = "aotkit"
        for directive, name in re.findall(r"^\.\. (\w+):: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            if directive in ("module", "currentmodule"):
                module = name
            found.add(f"{module}.{name}")
    return found


@each(FILES)
def test_what_begins_with_an_underscore_stays_in_its_file(path):
    names = [full for full in imported_names(ast.walk(parse(path)), path) if inside(full, ["aotkit"])]
    assert_none([n for n in names if n.rpartition(".")[2].startswith("_") and not n.endswith("__")], "name it without")


@each([Path(f"aotkit/{room}/__init__.py") for room in DOORS])
def test_a_door_hands_on_what_others_use(path):
    room = MODULES[path]
    used = {name for f, module in MODULES.items() if not inside(module, [room]) for name in own_names_used(f)}
    unused = [
        name for name in importlib.import_module(room).__all__ if f"{room}.{name}" not in used | WRITTEN | documented()
    ]
    assert_none(unused, "nothing outside uses it: take it out of the door")


def test_no_modules_import_each_other():
    try:
        graphlib.TopologicalSorter({module: modules_imported(f) for f, module in MODULES.items()}).prepare()
    except graphlib.CycleError as e:
        pytest.fail(f"a circle: {' -> '.join(e.args[1])}; for types alone, import it under TYPE_CHECKING")


def test_few_files_lie_at_the_top():
    assert len(TOP) <= MAX_FILES_AT_THE_TOP, (
        f"{', '.join(f.name for f in TOP)}: put the new one into the folder of its stage"
    )


def test_the_core_can_be_read_in_half_an_hour():
    """`make core` prints it."""
    listed = re.search(r"^CORE := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1]
    files = listed.replace("\\", " ").split()
    assert len(files) > 5
    assert sum(len((ROOT / f).read_text(encoding="utf-8").splitlines()) for f in files) <= MAX_CORE_LINES


@each([f for f in FILES if PRIVATE_NAMES_ALLOWED not in f.parents])
def test_private_names_of_torch_stay_in_one_place(path):
    names = [n for root in ("torch", "functorch") for n in names_used(parse(path), path, root)]
    # Operators such as torch.ops.aten._softmax are public in spite of their names; a backend may call its own compiler.
    allowed = ["torch.ops", *([f"torch._{path.stem}"] if path in BACKENDS else [])]
    assert_none([n for n in names if is_private(n) and not inside(n, allowed)], "take it from aotkit.torch_private")


@each(BACKENDS)
def test_a_backend_knows_no_other_plugin(path):
    names = imported_names(ast.walk(parse(path)), path)
    banned = ["aotkit.backends", "aotkit.partitioners", "aotkit.registry", "backends", "partitioners"]
    parts = [f"aotkit.backends.{folder}" for folder in BACKEND_FOLDERS]
    # inductor_cpp is inductor with an option.
    parts += [f"aotkit.backends.{f.stem}" for f in BACKENDS if path.stem.startswith(f"{f.stem}_")]
    found = [n for n in names if (inside(n, banned) and not inside(n, parts)) or n == "aotkit"]
    assert_none(found, "a backend imports only its own compiler and modules of the core")


@each(EXAMPLES)
def test_examples_use_only_public_names(path):
    public = {"aotkit", *(f"aotkit.{name}" for name in (*aotkit.__all__, *SUBPACKAGES))}
    names = names_used(parse(path), path, "aotkit")
    found = [n for n in names if ".".join(n.split(".")[:2]) not in public or is_private(n)]
    assert_none(found, "not public; what an example needs belongs in aotkit.__all__")


@each(FILES)
def test_functions_and_files_stay_short(path):
    lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_FILE_LINES, f"{path} has {lines} lines: split it by subject"
    functions = [n for n in ast.walk(parse(path)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [f.name for f in functions if f.end_lineno - f.lineno >= MAX_FUNCTION_LINES]
    assert_none(long, f"more than {MAX_FUNCTION_LINES} lines: split it")


def test_importing_aotkit_is_cheap():
    program = (
        "import sys, torch; before = {*sys.modules}; from aotkit import compile; print(*sys.modules.keys() - before)"
    )
    command = [sys.executable, "-c", program]
    added = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout.split()
    assert "aotkit.compiler" in added
    heavy = {"functorch", "torch._inductor", "torch._dynamo", "networkx", "IPython"}
    assert_none(sorted(heavy.intersection(added)), "imported with `aotkit.compile`; import it when it is needed")

"""What the documents say holds: code runs and prints what stands below it, commands exist, links lead somewhere."""

import doctest
import inspect
import linecache
import pkgutil
import re
import shlex
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import aotkit
from aotkit import cli
from tests.view.browser import executable

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.rst")))
BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:^python -m |[`$] ?(?:python -m )?)aotkit (\w[^`#\n]*)", re.MULTILINE)
TARGET = re.compile(r"(?:^|[`$] ?)make (\w+)", re.MULTILINE)
LINK = re.compile(r"\]\(([^):#]*)(?:#([^)]*))?\)")
FLOW = ROOT / "docs" / "how_it_works.md"
DOTTED = re.compile(r"`(\w+(?:\.\w+)+)`")
STEP = re.compile(r"^\d+\. .*\n(?:   .*\n)*", re.MULTILINE)
LONG = ["fused_modules"]  # half a minute
LARGEST_IMAGE = 150_000  # bytes

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
each_document = pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.stem)


@pytest.fixture
def registry():
    """Takes back what a page registers."""
    kinds = {
        aotkit.unregister_backend: aotkit.list_backends,
        aotkit.unregister_partitioner: aotkit.list_partitioners,
    }
    before = {unregister: listed() for unregister, listed in kinds.items()}
    yield
    for unregister, listed in kinds.items():
        for name in set(listed()).difference(before[unregister]):
            unregister(name)


def assert_prints(want, code, capsys):
    got = capsys.readouterr().out
    same = doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert same, f"{code}\nprinted\n{got}"


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.sweep if p.stem in LONG else []) for p in PAGES],
    ids=lambda page: page.stem,
)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # TorchDynamo's, which it hides
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(page, registry, capsys, tmp_path, monkeypatch):
    """All of its Python is one program, which messages call by the page's name: the lines of `tutorial.py`.

    Where a console shows what a command of aotkit's prints, the command runs after what stands above it.
    """
    monkeypatch.chdir(tmp_path)
    name, program, names = f"{page.stem}.py", "", {"__name__": "__main__"}
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    for (language, code), (following, output) in pairwise([*blocks, ("", "")]):
        if language == "python":
            before, program = program, program + code
            linecache.cache[name] = (len(program), None, program.splitlines(keepends=True), name)
            exec(compile("\n" * before.count("\n") + code, name, "exec"), names)
            if following == "text":
                assert_prints(output, code, capsys)
        elif language == "console":
            for command, output in re.findall(r"^\$ (?:python -m )?aotkit (.*)\n((?:[^$].*\n)+)", code, re.MULTILINE):
                capsys.readouterr()
                cli.main(shlex.split(command))
                assert_prints(output, command, capsys)


@each_page
def test_other_blocks_are_well_formed(page):
    for language, code in BLOCK.findall(page.read_text(encoding="utf-8")):
        assert language in ("python", "py", "text", "console", "toml", "c++"), f"nothing checks a block of {language!r}"
        if language == "py":  # shown, not run: it needs a package that need not be there
            compile(code, page.name, "exec")
        if language == "toml":
            groups = tomllib.loads(code)["project"]["entry-points"]
            assert set(groups) <= {"aotkit.backends", "aotkit.partitioners"}


@each_document
def test_commands_exist(page, capsys):
    text = page.read_text(encoding="utf-8")
    for command in map(shlex.split, COMMAND.findall(text)):
        with pytest.raises(SystemExit) as end:
            cli.main([*command, "--help"])
        shown = capsys.readouterr().out
        missing = [word for word in command if word.startswith("--") and word not in shown]
        assert not end.value.code, f"there is no command {command}"
        assert not missing, f"{command} has no {missing}"
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(TARGET.findall(text)) <= set(targets)


def anchors(path):
    """Those of the headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_document
def test_links_lead_somewhere(page):
    for target, anchor in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{target} does not"
        assert not anchor or anchor in anchors(path), f"{path.name} has no heading for #{anchor}"


@each_document
def test_files_that_a_page_names_exist(page):
    for named in re.findall(r"`([\w/]+/\w+\.py)`", page.read_text(encoding="utf-8")):
        assert (ROOT / named).exists() or (ROOT / "aotkit" / named).exists(), f"{page.name} names {named}"


def test_functions_that_the_flow_names_exist():
    tops = {path.stem for path in (ROOT / "aotkit").iterdir()}
    found = DOTTED.findall(FLOW.read_text(encoding="utf-8"))
    named = {name for name in found if name.partition(".")[0] in tops and not name.endswith(".py")}
    assert named
    for name in named:
        pkgutil.resolve_name(f"aotkit.{name}")


def code_named(name):
    """The code of a function or method of aotkit; of a class, that which makes an object of it."""
    named = pkgutil.resolve_name(f"aotkit.{name}")
    return inspect.unwrap(named.__init__ if inspect.isclass(named) else named).__code__


def test_functions_that_the_flow_names_run_in_its_order(monkeypatch):
    """In Python: C++, where it is built, is not seen here, and runs the backward graph by itself."""
    monkeypatch.setenv("AOTKIT_NATIVE", "0")
    _, _, section = FLOW.read_text(encoding="utf-8").partition("## From a call to its result\n")
    section, _, _ = section.partition("\n## ")
    code = next(code for language, code in BLOCK.findall(section) if language == "python")
    called, before = [], sys.getprofile()
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code) if event == "call" else None)
    try:
        exec(compile(code, FLOW.name, "exec"), {"aotkit": aotkit, "torch": torch})
    finally:
        sys.setprofile(before)
    steps = STEP.findall(section)
    assert len(steps) > 1
    calls = iter(called)
    for step in steps:
        for name in DOTTED.findall(step):
            assert code_named(name) in calls, f"{name} does not run after what is named before it"
    assert called.count(code_named("capture.entry.Entry")) == 1, "the second call makes an entry, too"


def test_every_page_is_on_the_site_and_every_image_small():
    index = (ROOT / "docs" / "index.rst").read_text(encoding="utf-8")
    listed = {(ROOT / "docs" / name).resolve() for name in re.findall(r"^   (?:.*<)?([\w./]+)>?$", index, re.MULTILINE)}
    pages = [*DOCUMENTS, ROOT / "CHANGELOG.md", ROOT / "aotkit" / "torch_private" / "names.md"]
    pages += [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("docs/reference/*.rst")]
    assert listed == {page.with_suffix("") for page in pages}
    large = [path.name for path in (ROOT / "docs" / "images").iterdir() if path.stat().st_size > LARGEST_IMAGE]
    assert not large, f"over {LARGEST_IMAGE} bytes: {large}"


def test_the_reference_has_every_public_name_and_every_plugin():
    listed = set(re.findall(r"^\.\. auto\w+:: (?:aotkit\.)?(\S+)$", REFERENCE, re.MULTILINE))
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    plugins = [
        f"{group.removeprefix('aotkit.')}.{name}"
        for group, names in declared.items()
        for name in names
        if group.startswith("aotkit.")
    ]
    missing = sorted({*aotkit.__all__, *plugins} - listed)
    assert not missing, f"name them in docs/reference: {missing}"


@pytest.mark.sweep
@pytest.mark.skipif(executable() is None, reason="no Chromium on this machine")
def test_the_screenshots_are_those_that_the_command_draws(tmp_path, monkeypatch):
    from docs import screenshots

    monkeypatch.setattr(screenshots, "IMAGES", tmp_path)
    screenshots.main()
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(path.name for path in (ROOT / "docs" / "images").glob("*.png"))


def test_the_options_of_by_region_exist():
    text = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    for options in re.findall(r'aotkit\.by_region\("nvfuser", (.*?)\)`', text):
        assert callable(eval(f"aotkit.by_region('nop', {options})", {"aotkit": aotkit}).fw_compiler)

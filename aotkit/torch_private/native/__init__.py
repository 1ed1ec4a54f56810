"""Find and load the parts of a call that are worth C++: the library of `call.cpp`, with the headers.

A wheel may have it (`make wheel`). Else it is built once for each version of torch and Python, in the background, while
everything runs in Python; compilations after that use it. `AOTKIT_NATIVE=0` keeps to Python, `AOTKIT_NATIVE=1` waits
for the build.
"""

import importlib.machinery
import importlib.util
import os
import types
from pathlib import Path

from aotkit.torch_private.native import building

PACKAGED = Path(__file__).parent / "built"

_loaded: types.ModuleType | None = None
_is_missed = False
_unusable: dict[Path, str] = {}  # libraries that do not load, and why


def library() -> types.ModuleType | None:
    """The library, if it is wanted and there; if it is not there, `begin_build` will have it built.

    Raises:
        RuntimeError: `AOTKIT_NATIVE=1`, and it cannot be built.
    """
    global _loaded, _is_missed
    wanted = os.environ.get("AOTKIT_NATIVE", "")
    if wanted == "0":
        return None
    if _loaded is None:
        _loaded = _found()
    if _loaded is None and wanted == "1":
        if not building.can_build():
            raise RuntimeError("AOTKIT_NATIVE=1, but there is no C++ compiler: install g++ or clang++, or set CXX.")
        building.build(_cached())
        _loaded = _load(_cached())
    _is_missed = _loaded is None
    return _loaded


def begin_build() -> None:
    """Begin to build the library in the background if it has been missed.

    For when a call is over, the first one above all: its time is that of compilers, which are many already.
    """
    global _is_missed
    if _is_missed and not os.environ.get("AOTKIT_NATIVE") and building.can_build():
        _is_missed = False
        building.begin(_cached())


def build() -> None:
    """Build the library now, unless it is there or there is no compiler.

    Raises:
        RuntimeError: the compiler fails.
    """
    if (path := library_path()) is not None and not path.exists():
        building.build(path)


def library_path() -> Path | None:
    """Where the library is, or will be once it is built; None if there is neither it nor a compiler."""
    path = next((path for path in _places() if path.exists()), _cached())
    return path if path.exists() or building.can_build() else None


def cache_folder() -> Path:
    """Where libraries are kept from one process to the next."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotkit"


def state() -> tuple[str, str | None]:
    """Where the library is, and why it is not used, or what failed; the latter is None if nothing did."""
    path = library_path()
    if os.environ.get("AOTKIT_NATIVE") == "0":
        return "off", "AOTKIT_NATIVE=0 keeps to Python"
    if path is None:
        return "none", "there is no C++ compiler to build them with"
    if path.exists():
        _found()
        return str(path), _unusable.get(path)
    if (failure := building.failure(path)).exists():
        said = [line for line in failure.read_text(errors="replace").splitlines() if line.strip()]
        reason = next((line for line in said if "error" in line.lower()), said[-1] if said else "it said nothing")
        return "none", f"the compiler failed: {reason} ({failure}). AOTKIT_NATIVE=1 tries again"
    return ("being built" if building.is_begun(path) else "not built yet"), None


def _places() -> tuple[Path, Path]:
    return PACKAGED / building.place(), _cached()


def _cached() -> Path:
    return cache_folder() / building.place()


def _found() -> types.ModuleType | None:
    for path in _places():
        if path not in _unusable and path.exists():
            try:
                return _load(path)
            except ImportError as e:  # as of a wheel that was built on a newer system
                _unusable[path] = str(e)
    return None


def _load(path: Path) -> types.ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(building.NAME, str(path))
    spec = importlib.util.spec_from_file_location(building.NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module

"""Whether what a backend needs is installed, and how to get it. Nothing is imported."""

import importlib.util
from collections.abc import Callable, Mapping


def missing(packages: Mapping[str, str]) -> Callable[[], str | None]:
    """A `Backend.unavailable`.

    Args:
        packages: module -> what pip calls the package that has it.
    """

    def unavailable() -> str | None:
        lacking = [module for module in packages if not _is_there(module)]
        if not lacking:
            return None
        names = " ".join(dict.fromkeys(packages.values()))
        return f"there is no module {' and no '.join(map(repr, lacking))}. Get it by `pip install {names}`."

    return unavailable


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor the package that it would be in
        return False

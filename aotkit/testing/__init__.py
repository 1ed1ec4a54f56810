"""For authors of plug-ins: test suites that any backend and any partitioner should pass.

Needs pytest only where one of the classes is subclassed.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aotkit.testing.conformance.classes import BackendConformance, PartitionerConformance

__all__ = ["BackendConformance", "PartitionerConformance"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from aotkit.testing.conformance import classes

    return getattr(classes, name)

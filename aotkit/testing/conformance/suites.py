"""All requirements on backends, and all on partitioners."""

from aotkit.errors import UnknownNameError
from aotkit.registry import list_backends, list_partitioners
from aotkit.testing.conformance import calls, contract, errors, operators, opinfo, partitioning, values
from aotkit.testing.conformance.requirements import Kind, Requirement, Requirements

SUITES: dict[Kind, list[Requirements]] = {
    "backend": [
        contract.CONTRACT,
        *calls.CALLS,
        errors.ERRORS,
        values.GRADIENT,
        values.LAYOUT,
        values.SIZE,
        values.DTYPE,
        operators.OPERATORS,
        values.ZOO,
    ],
    "partitioner": [
        partitioning.CUT,
        partitioning.RANDOM,
        *calls.CALLS,
        values.BACKENDS,
        values.GRADIENT,
        values.SIZE,
        values.DTYPE,
        values.FUNCTIONS,
    ],
}


def requirements(kind: Kind, all_operators: bool = False) -> list[Requirement]:
    """The requirements on one kind of plug-in.

    Args:
        all_operators: with every operator of PyTorch's own test database.

    Raises:
        UnavailableError: the database needs packages that are not installed.
    """
    groups = [*SUITES[kind], *([opinfo.operators()] if all_operators else [])]
    return [r for group in groups for r in group]


def kind_of(name: str) -> Kind:
    """What kind of plug-in is registered under a name.

    Raises:
        UnknownNameError: none, or one of each.
    """
    names: dict[Kind, list[str]] = {"backend": list_backends(), "partitioner": list_partitioners()}
    match [kind for kind, known in names.items() if name in known]:
        case [kind]:
            return kind
        case []:
            known = "; ".join(f"{kind}s: {', '.join(names)}" for kind, names in names.items())
            raise UnknownNameError(f"no backend or partitioner is named {name!r}. Registered {known}.")
        case _:
            raise UnknownNameError(f"{name!r} is a backend and a partitioner: choose one with --kind.")

"""`aotkit check` and `aotkit faults`."""

import argparse
from typing import TYPE_CHECKING

from aotkit.cli.usage import add_device, add_json, progress, require_device, show_json, shown
from aotkit.errors import UnknownNameError

if TYPE_CHECKING:
    from aotkit.cli.usage import Commands


def add(commands: "Commands") -> None:
    _add_check(commands.add_parser("check", help="find out whether a backend or partitioner does all it has to"))
    _add_faults(commands.add_parser("faults", help="whether the check catches planted faults, next to torch's own"))


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a registered backend or partitioner")
    parser.add_argument("--kind", choices=("backend", "partitioner"), help="needed if NAME is both")
    parser.add_argument("--case", default="*", metavar="PATTERN", help="only these; * and ? match; default: all")
    parser.add_argument("--all-operators", action="store_true", help="add opinfo/*: PyTorch's own test database")
    add_device(parser)
    add_json(parser)
    parser.set_defaults(run=_check)


def _add_faults(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="*", metavar="NAME", help="only these faults, or functions of the zoo with --alarms; default: all"
    )
    parser.add_argument(
        "--alarms", action="store_true", help="instead, look for false alarms: what is right, and refused (hours)"
    )
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="of --alarms: inputs of each function")
    parser.add_argument(
        "--backend", nargs="+", default=[], metavar="NAME", help="of --alarms: only these; default: all that run here"
    )
    add_json(parser)
    parser.set_defaults(run=_faults)


def _check(options: argparse.Namespace) -> int:
    require_device(options.device)
    import torch

    from aotkit.testing.conformance.report import matching, run
    from aotkit.testing.conformance.requirements import Requirement, Subject
    from aotkit.testing.conformance.suites import kind_of, requirements

    kind = options.kind or kind_of(options.name)
    cases = matching(requirements(kind, options.all_operators), options.case)
    tell, told = progress(), set[str]()

    def tell_group(requirement: Requirement) -> None:
        group = requirement.name.partition("/")[0]
        if group not in told:
            told.add(group)
            tell(f"{options.name}: {group}")

    subject = Subject(kind, options.name, torch.device(options.device))
    return shown(run(subject, cases, progress=tell_group), options)


def _faults(options: argparse.Namespace) -> int:
    from aotkit.testing.faults import FAULTS, caught
    from aotkit.testing.faults.judge import as_json, as_text
    from aotkit.testing.zoo import CASES

    names = [case.name for case in CASES] if options.alarms else [fault.name for fault in FAULTS]
    if unknown := [name for name in options.name if name not in names]:
        raise UnknownNameError(f"nothing is called {', '.join(unknown)}; there are {', '.join(names)}.")
    if options.alarms:
        return _alarms(options)
    tell, verdicts = progress(), []
    for fault in FAULTS:
        if not options.name or fault.name in options.name:
            tell(fault.name)
            verdicts.append(caught(fault))
    if options.json:
        show_json(as_json(verdicts))
    else:
        print(as_text(verdicts))
    return 0 if all(v.caught for v in verdicts) else 1


def _alarms(options: argparse.Namespace) -> int:
    from aotkit.testing.faults.alarms import alarms, combinations

    tell, found, checks = progress(), [], 0
    for where in combinations(options.name, options.backend):
        tell(str(where))
        here = alarms(where, range(options.seeds))
        if not options.json:
            print(*here, sep="\n", end="\n" if here else "", flush=True)
        found += here
        checks += options.seeds
    if options.json:
        show_json({"schema": 1, "checks": checks, "alarms": [alarm.json() for alarm in found]})
    else:
        print(f"{len(found)} false alarms in {checks} checks.")
    return 1 if found else 0

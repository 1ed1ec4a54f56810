"""`aotkit check` and `aotkit faults`."""

import argparse
import os

from aotkit.cli.usage import CHECK_FAILED, Commands, add_command, add_device, progress, require_device, show, shown
from aotkit.errors import UnknownNameError


def add(commands: Commands) -> None:
    check = add_command(commands, "check", _check, "find out whether a backend or partitioner does all it has to")
    check.add_argument("name", metavar="NAME", help="a registered backend or partitioner")
    check.add_argument("--kind", choices=("backend", "partitioner"), help="needed if NAME is both")
    check.add_argument("--case", default="*", metavar="PATTERN", help="only these; * and ? match; default: all")
    check.add_argument("--all-operators", action="store_true", help="add opinfo/*: PyTorch's own test database")
    add_device(check)
    faults = add_command(commands, "faults", _faults, "whether the check catches planted faults, next to torch's own")
    faults.add_argument(
        "name", nargs="*", metavar="NAME", help="only these faults, or functions of the zoo with --alarms; default: all"
    )
    faults.add_argument(
        "--alarms", action="store_true", help="instead, look for false alarms: what is right, and refused (hours)"
    )
    faults.add_argument("--seeds", type=int, default=20, metavar="N", help="of --alarms: inputs of each function")
    faults.add_argument(
        "--backend", nargs="+", default=[], metavar="NAME", help="of --alarms: only these; default: all that run here"
    )


def _check(options: argparse.Namespace) -> int:
    require_device(options.device)
    _judge_anew()
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


def _judge_anew() -> None:
    """What was found before is no verdict on a plug-in, or on the check."""
    os.environ["AOTKIT_KEEP"] = "0"


def _faults(options: argparse.Namespace) -> int:
    _judge_anew()
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
    show(options, as_json(verdicts), as_text(verdicts))
    return 0 if all(v.caught for v in verdicts) else CHECK_FAILED


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
    data = {"schema": 1, "checks": checks, "alarms": [alarm.json() for alarm in found]}
    show(options, data, f"{len(found)} false alarms in {checks} checks.")
    return CHECK_FAILED if found else 0

"""`python -m tests.models.speed`: training steps of public models in real sizes, beside torch.compile.

All ways of one model run interleaved in one process.
"""

import argparse
import fnmatch
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from tests.models.speed.measure import Options, Row, measure, table
from tests.models.speed.models import MODELS
from tests.models.speed.together import measure_together
from tests.models.zoo import Training

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def main() -> int:
    """Measure, and print a table: 0, or 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.models.speed", description=__doc__)
    parser.add_argument("--models", default="*", metavar="GLOB,GLOB", help=", ".join(MODELS))
    parser.add_argument("--variants", default="torch.compile,inductor/min_cut,inductor/nx_min_cut", metavar="NAME,NAME")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--seconds", type=float, default=20.0, help="of timing for each model")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--together", action="store_true", help="compile all models at once, then time one at a time")
    given = parser.parse_args()
    patterns = given.models.split(",")
    models = {name: MODELS[name] for name in MODELS if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    if not models:
        parser.error(f"no model matches {given.models!r}")
    options = Options(device=given.device, dtype=DTYPES[given.dtype], seconds=given.seconds, check=not given.no_check)
    measured = (measure_together if given.together else _one_by_one)(models, given.variants.split(","), options)
    rows: list[tuple[str, Row]] = []
    for name, found in measured:
        print(table((name, row) for row in found), file=sys.stderr, flush=True)
        rows += [(name, row) for row in found]
    where = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {where}, {given.dtype}, train mode\n\n{table(rows)}")
    return int(any(row.error for _, row in rows))


def _one_by_one(
    models: Mapping[str, Callable[[], Training]], variants: Sequence[str], options: Options
) -> Iterator[tuple[str, list[Row]]]:
    for name, build in models.items():
        yield name, measure(build, variants, **options)


if __name__ == "__main__":
    sys.exit(main())

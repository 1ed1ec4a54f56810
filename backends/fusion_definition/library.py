"""nvFuser's Python package, and whether it can be used here."""

import importlib
import importlib.util
from types import ModuleType

import torch

MODULE = "nvfuser_direct"
# The newest PyTorch that there is a wheel for, and the first one in which tensors are laid out otherwise.
BUILT_FOR, FIRST_DIFFERENT = (2, 10), (2, 12)
SEE_ALSO = "PyTorch 2.11 also needs what docs/nvfuser.md of aotkit says."


def load() -> ModuleType:
    """The package; takes a second the first time."""
    return importlib.import_module(MODULE)


def unavailable() -> str | None:
    """Why nvFuser cannot run here, and what to do about it."""
    version = torch.__version__.split("+")[0]
    major, minor = (int(part) for part in version.split(".")[:2])
    built = ".".join(map(str, BUILT_FOR))
    if (major, minor) >= FIRST_DIFFERENT:
        return (
            f"its newest wheel is for PyTorch {built} and would corrupt memory in {version}, where tensors are laid "
            f"out otherwise. Use PyTorch {FIRST_DIFFERENT[0]}.{FIRST_DIFFERENT[1] - 1}, or backend 'inductor'."
        )
    if not torch.cuda.is_available():
        return "there is no CUDA device. Use backend 'inductor'."
    if importlib.util.find_spec(MODULE) is None:
        return f"it is not installed: `pip install {wheel()}`, for Python 3.10 and 3.12; {SEE_ALSO}"
    try:
        load()
    except Exception as e:
        return f"importing {MODULE}, built for PyTorch {built}, raised {type(e).__name__}: {e}. {SEE_ALSO}"
    return None


def wheel() -> str:
    """The name of the wheel for this PyTorch's CUDA."""
    cuda = (torch.version.cuda or "").replace(".", "")
    return f"nvfuser-cu{cuda}-torch{BUILT_FOR[0]}{BUILT_FOR[1]}"

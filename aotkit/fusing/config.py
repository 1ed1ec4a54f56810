"""What to fuse, and how: as a dataclass, as a dict with the keys that OSLO had, or as a file of that."""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotkit.capture import Check, Randomness
from aotkit.errors import UnavailableError, UnknownNameError, UnsupportedError
from aotkit.interfaces import Partitioner
from aotkit.registry import BackendSpec
from aotkit.text import listed, nearest

MOST_LISTED = 20
SECTION = "kernel_fusion"
CUSTOM_KERNELS = ("FusedRMSNorm", "FusedNoRepeatNGram")
_OSLO_NAMES = {"custom_cuda_kernels": "custom_kernels"}
# What else OSLO's dict has, and what does it here.
_ELSEWHERE = {
    "model_parallelism": "shard the model with torch.distributed first, then fuse it",
    "activation_checkpointing": "call model.gradient_checkpointing_enable()",
}


@dataclass(frozen=True)
class FusionConfig:
    """What `fuse` does with a model.

    Attributes:
        enable: False: nothing.
        memory_efficient_fusion: compile the whole model, and save for its backward pass the fewest bytes that need
            nothing expensive twice (`nx_min_cut`). False: compile activations alone, with the layers that feed them.
        custom_kernels: "FusedRMSNorm": the kernels of `aotkit.nn` for RMS norms. "FusedNoRepeatNGram": `generate` bans
            repeated n-grams by those of `aotkit.nn`.
        regions: compile these modules, instead of what `memory_efficient_fusion` says: names of classes or of modules,
            or patterns of such, as "GPT2Block" or "transformer.h.*.mlp". Of modules inside each other, the outermost.
        backend, partition, check, random: as for `aotkit.compile`.
        memory_limit: what one compiled graph may save for its backward pass: bytes, "2GiB", or a fraction of what the
            fastest partition saves.
    """

    enable: bool = True
    memory_efficient_fusion: bool = False
    custom_kernels: Sequence[str] = ()
    regions: Sequence[str] = ()
    backend: BackendSpec = "auto"
    partition: str | Partitioner = "auto"
    memory_limit: int | float | str | None = None
    check: Check = True
    random: Randomness = "shared"

    def __post_init__(self) -> None:
        for name in ("enable", "memory_efficient_fusion"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, not {getattr(self, name)!r}.")
        for name in ("custom_kernels", "regions"):
            value = getattr(self, name)
            if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
                raise TypeError(f"{name} must be a list of names, not {value!r}.")
        for kernel in self.custom_kernels:
            require_known("custom kernel", kernel, CUSTOM_KERNELS)
        if self.memory_limit is not None and self.partition not in ("auto", "nx_min_cut"):
            raise ValueError(
                f"memory_limit is a limit of 'nx_min_cut', not of {self.partition!r}. Leave one of them out."
            )


AnyConfig = FusionConfig | Mapping[str, Any] | str | os.PathLike[str] | None


def config_of(given: AnyConfig) -> FusionConfig:
    """A config from itself, from a dict, or from the path of a JSON or YAML file; None: the defaults.

    Raises:
        UnknownNameError: a key or a custom kernel is not known; the message suggests the nearest.
        UnsupportedError: it asks for what `fuse` does not do.
        UnavailableError: a YAML file, without PyYAML.
        TypeError, ValueError: a value is none of those.
        OSError: the file cannot be read.
    """
    if given is None:
        return FusionConfig()
    if isinstance(given, FusionConfig):
        return given
    if isinstance(given, str | os.PathLike):
        given = _read(Path(given))
    if not isinstance(given, Mapping):
        raise TypeError(f"a config is a FusionConfig, a dict or the path of a file, not {given!r}.")
    return _from_sections(given)


def _from_sections(sections: Mapping[str, Any]) -> FusionConfig:
    keys = [field.name for field in dataclasses.fields(FusionConfig)] + [*_OSLO_NAMES]
    for name, section in sections.items():
        if name in keys:
            raise UnknownNameError(f"the config has {name!r} at the top. Put it into {SECTION!r}: {{...}}.")
        require_known("section of the config", name, [SECTION, *_ELSEWHERE])
        if not isinstance(section, Mapping):
            raise TypeError(f"{name} must be a dict, not {section!r}.")
        if name in _ELSEWHERE and section.get("enable"):
            raise UnsupportedError(f"the config enables {name!r}, which fuse does not do: {_ELSEWHERE[name]}.")
    values: dict[str, Any] = {}
    for key, value in sections.get(SECTION, {}).items():
        require_known(f"key of {SECTION!r}", key, keys)
        name = _OSLO_NAMES.get(key, key)
        if name in values:
            raise ValueError(f"{SECTION} has {key!r} twice, by two names. Leave one of them out.")
        values[name] = value
    return FusionConfig(**values)


def _read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(f"{path} is neither .json nor .yaml: rename it, or pass a dict.")
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise UnavailableError(f"{path} needs PyYAML: pip install pyyaml, or write it as JSON.") from None
    return yaml.safe_load(text)


def require_known(what: str, name: str, known: Iterable[str]) -> None:
    """Raises UnknownNameError, which suggests the nearest, unless a name is known."""
    known = [*known]
    if name in known:
        return
    raise UnknownNameError(
        f"no {what} is named {name!r}.{nearest(str(name), known)} There are: {listed(known, MOST_LISTED)}."
    )

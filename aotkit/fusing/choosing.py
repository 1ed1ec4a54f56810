"""What becomes of each module of a model: decided before any is changed."""

import fnmatch
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from aotkit.compiled import CompiledModule
from aotkit.fusing.activations import activations, is_block, why_not_alone
from aotkit.fusing.classes import original_class
from aotkit.fusing.config import FusionConfig, require_known
from aotkit.fusing.decision import Decision
from aotkit.fusing.kernels import norms

# Where modules turn out to differ, as layers do that know their number in a cache, TorchDynamo compiles for each, looks
# through all of these at each call, and gives up at 64.
MOST_IN_A_GROUP = 8
WHOLE = Decision("compiled", "the whole model")
PARTS = Decision("left", "its parts are looked at one by one")
NOTHING = Decision("left", "none of its parts is an activation of torch or transformers; choose some by `regions`")


def decisions_of(model: nn.Module, config: FusionConfig) -> dict[str, Decision]:
    """For each module that a config is about, by name, what becomes of it; "" is the model itself.

    Raises:
        UnknownNameError: a pattern of `regions` matches no module.
    """
    if config.regions:
        found = _regions(model, config.regions)
    elif config.memory_efficient_fusion:
        found = {"": WHOLE}
    else:
        found = _around_activations(model)
    if "FusedRMSNorm" in config.custom_kernels:
        found = {**norms(model, backend=config.backend, check=config.check), **found}
    found = {name: _if_possible(model.get_submodule(name), decision) for name, decision in found.items()}
    return {"": PARTS if found else NOTHING, **_grouped(model, found)}


def _grouped(model: nn.Module, found: dict[str, Decision]) -> dict[str, Decision]:
    counts: Counter[type] = Counter()
    grouped = {}
    for name, decision in found.items():
        cls = original_class(model.get_submodule(name))
        grouped[name] = replace(decision, group=counts[cls] // MOST_IN_A_GROUP)
        counts[cls] += decision.outcome == "compiled"
    return grouped


def _regions(model: nn.Module, patterns: Sequence[str]) -> dict[str, Decision]:
    found: dict[str, Decision] = {}
    unmatched = set(patterns)
    for name, module in model.named_modules():
        names = name, original_class(module).__name__
        matching = [p for p in patterns if any(fnmatch.fnmatchcase(n, p) for n in names)]
        unmatched.difference_update(matching)
        if matching and not any(outer == "" or name.startswith(f"{outer}.") for outer in found):
            found[name] = Decision("compiled", f"region {matching[0]!r}")
    for pattern in sorted(unmatched):
        classes = {original_class(module).__name__ for module in model.modules()}
        inside = [name for name, _ in model.named_modules() if name]
        require_known("module or class of the model", pattern, [*sorted(classes), *inside])
    return found


def _around_activations(model: nn.Module) -> dict[str, Decision]:
    found: dict[str, Decision] = {}
    for name, activation, owner_name, owner in activations(model):
        what = original_class(activation).__name__
        if is_block(owner):
            found[owner_name] = Decision("compiled", f"{what}, with the layers around it")
        elif (reason := why_not_alone(activation)) is not None:
            found[name] = Decision("left", f"{reason}, and {original_class(owner).__name__} is more than layers")
        else:
            found[name] = Decision("compiled", "an activation of several operators")
    return found


def _if_possible(module: nn.Module, decision: Decision) -> Decision:
    """The decision, or why it cannot be carried out."""
    reason = None
    if "forward" in vars(module):
        reason = "it has a `forward` among its own attributes, which wins over its class's: fuse before that is set"
    elif isinstance(module, CompiledModule):
        reason = "aotkit.compile has compiled it"
    elif isinstance(module, torch.jit.ScriptModule):
        reason = "it is TorchScript, whose class cannot change"
    elif isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        reason = "it has no parameters yet: call it once on an example, then fuse"
    return decision if reason is None or decision.outcome == "left" else Decision("left", reason)

"""The ways to run each workload: eager, torch.compile, and `aotkit.fuse` with configs as OSLO's tutorial had them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aotkit.benchmark.oslo.host_ngrams import HostNoRepeatNGram
from aotkit.benchmark.oslo.workloads import GPT2_INFERENCE, GPT2_TRAINING, NGRAM_SIZE, T5_GENERATE
from aotkit.benchmark.rivals import EAGER, TORCH_COMPILE

BEFORE_5_15 = "eager n-grams of before 5.15"


@dataclass(frozen=True)
class Variant:
    """One way to run a workload.

    Attributes:
        prepare: changes the model in place.
        options: of `generate`, made for each process.
        is_ours: whether aotkit compiles something of it.
    """

    prepare: Callable[[Any], object] = lambda model: None
    options: Callable[[], Mapping[str, Any]] = dict
    is_ours: bool = False


def static() -> Mapping[str, Any]:
    """A cache of fixed size, with which `generate` compiles the decoder by itself: on a GPU, and here on a CPU, too."""
    from transformers import CompileConfig

    config: Any = CompileConfig()
    config._compile_all_devices = True
    return {"cache_implementation": "static", "compile_config": config}


def _compiled(**options: Any) -> Variant:
    return Variant(lambda model: model.compile(**options))


def _fused(**config: Any) -> Variant:
    def prepare(model: Any) -> None:
        from aotkit.fusing import fuse

        fuse(model, {"kernel_fusion": config})

    return Variant(prepare, is_ours=True)


def _generating(variant: Variant, options: Callable[[], Mapping[str, Any]] = dict) -> Variant:
    return replace(variant, options=lambda: {"no_repeat_ngram_size": NGRAM_SIZE, **options()})


KERNELS = ["FusedRMSNorm", "FusedNoRepeatNGram"]
# Names have no commas, which stand between names on the command line.
VARIANTS: dict[str, dict[str, Variant]] = {
    GPT2_INFERENCE: {
        EAGER: Variant(),
        TORCH_COMPILE: _compiled(),
        f"{TORCH_COMPILE} max-autotune": _compiled(mode="max-autotune"),
        "fuse activations": _fused(),
        "fuse the model": _fused(memory_efficient_fusion=True),
    },
    GPT2_TRAINING: {
        EAGER: Variant(),
        TORCH_COMPILE: _compiled(),
        "fuse activations": _fused(),
        "fuse the model": _fused(memory_efficient_fusion=True),
    },
    T5_GENERATE: {
        EAGER: _generating(Variant()),
        BEFORE_5_15: Variant(options=lambda: {"logits_processor": [HostNoRepeatNGram(NGRAM_SIZE)]}),
        TORCH_COMPILE: _generating(_compiled(dynamic=True)),
        f"{TORCH_COMPILE} static cache": _generating(Variant(), static),
        "fuse kernels": _generating(_fused(custom_kernels=KERNELS)),
        "fuse the model": _generating(_fused(memory_efficient_fusion=True, custom_kernels=KERNELS)),
        "fuse the model static cache": _generating(
            _fused(memory_efficient_fusion=True, custom_kernels=KERNELS), static
        ),
    },
}

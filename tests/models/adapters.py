"""Fine-tuning with peft: adapters on a small Llama, whose own weights are frozen."""

from typing import Any

from tests.models.decoders import DECODERS
from tests.models.texts import labels, model_of, tokens
from tests.models.zoo import Training, step


def _adapted(config: Any) -> Training:
    import peft

    model = peft.get_peft_model(model_of("CausalLM", "llama", **DECODERS["llama"]), config)
    inputs = tokens()
    return Training(model, kwargs={**inputs, "labels": labels(inputs)})


@step("peft", "transformers")
def lora() -> Training:
    import peft

    options = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj"]}
    return _adapted(peft.LoraConfig(**options, task_type="CAUSAL_LM"))


@step("peft", "transformers")
def ia3() -> Training:
    import peft

    modules = {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
    return _adapted(peft.IA3Config(**modules, task_type="CAUSAL_LM"))

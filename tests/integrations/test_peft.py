"""peft: LoRA around a compiled model, and a compiled model with LoRA in it."""

import copy

import pytest
import torch

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from tests.integrations.models import assert_same_parameters, batch, compiled, decoder, train  # noqa: E402


def with_lora(model):
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("compiled_first", [False, True])
def test_lora(compiled_first, tmp_path):
    model = decoder(use_cache=False)
    eager = with_lora(copy.deepcopy(model))
    ours = with_lora(compiled(model)) if compiled_first else compiled(with_lora(model))
    batches = [batch([5, 4], seed=i) for i in range(3)]
    assert train(ours, batches) == pytest.approx(train(eager, batches), rel=1e-5)
    assert_same_parameters(ours, eager)
    ours.save_pretrained(tmp_path)
    assert_same_parameters(peft.PeftModel.from_pretrained(decoder(use_cache=False), tmp_path), eager)

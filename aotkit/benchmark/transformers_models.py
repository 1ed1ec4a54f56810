"""Hugging Face's transformers with random weights, as training losses of their inputs alone."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

Model = tuple[nn.Module, Sequence[Tensor]]
LANGUAGE = ("input_ids", "labels")


class Loss(nn.Module):
    """A model that computes its own loss: tensors named `names` -> loss."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)

    def forward(self, *inputs: Tensor) -> Tensor:
        loss: Tensor = self.model(**dict(zip(self.names, inputs, strict=True))).loss
        return loss


@contextmanager
def single_sequences() -> Iterator[None]:
    """Models that were built before run as if they knew that no two sequences are packed into one.

    They read that from the position numbers; but tracing has no values to read, and takes any mask for possible.
    """
    masks = sys.modules.get("transformers.masking_utils")
    if masks is None:  # no such model was built
        yield
        return
    with mock.patch.object(masks, "find_packed_sequence_indices", _one_sequence):
        yield


def _one_sequence(position_ids: Tensor) -> None:
    return None


def _loss(family: str, head: str, names: Sequence[str], **settings: Any) -> Loss:
    """A model of a class such as `GPT2LMHeadModel`, with the settings of its configuration.

    Raises:
        ImportError: transformers is not installed, or older than 5.
    """
    import transformers
    from transformers.initialization import no_init_weights

    with no_init_weights():  # fake weights have no values
        model = getattr(transformers, family + head)(getattr(transformers, f"{family}Config")(**settings))
    if head == "LMHeadModel":
        model.loss_type = "ForCausalLM"  # otherwise it logs a warning
    return Loss(model, names)


def _tokens(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, length, dtype=torch.long)


def gpt2(layers: int = 12, heads: int = 12, width: int = 768, batch: int = 8, length: int = 1024) -> Model:
    """GPT-2 small by default, with dropout 0.1."""
    model = _loss("GPT2", "LMHeadModel", LANGUAGE, n_layer=layers, n_head=heads, n_embd=width, use_cache=False)
    return model, (_tokens(batch, length), _tokens(batch, length))


def gpt2_xl() -> Model:
    return gpt2(layers=48, heads=25, width=1600, batch=4)


def bert(layers: int = 12, heads: int = 12, width: int = 768, batch: int = 16, length: int = 512) -> Model:
    """BERT base by default."""
    sizes = {"hidden_size": width, "intermediate_size": 4 * width}
    model = _loss("Bert", "ForMaskedLM", LANGUAGE, num_hidden_layers=layers, num_attention_heads=heads, **sizes)
    return model, (_tokens(batch, length), _tokens(batch, length))


def t5() -> Model:
    """T5 small."""
    model = _loss("T5", "ForConditionalGeneration", LANGUAGE, use_cache=False, decoder_start_token_id=0, pad_token_id=0)
    return model, (_tokens(16, 512), _tokens(16, 128))


def llama(layers: int = 8, heads: int = 16, width: int = 2048, batch: int = 4, length: int = 2048) -> Model:
    """Eight layers of Llama's kind by default: of width 2048, with grouped-query attention."""
    model = _loss(
        "Llama", "ForCausalLM", LANGUAGE, vocab_size=32000, hidden_size=width, intermediate_size=width * 11 // 4,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads // 2,
        max_position_embeddings=length, use_cache=False,
    )  # fmt: skip
    return model, (_tokens(batch, length), _tokens(batch, length))


def vit() -> Model:
    """ViT base."""
    # A model that is not told its kind of problem notes it at its first call.
    settings = {"num_labels": 1000, "problem_type": "single_label_classification"}
    model = _loss("ViT", "ForImageClassification", ("pixel_values", "labels"), **settings)
    return model, (torch.zeros(32, 3, 224, 224), torch.zeros(32, dtype=torch.long))


def with_values(make: Callable[..., Any], **sizes: int) -> Model:
    """A language model with random weights and tokens: a GPU multiplies zeros, and gathers the same row, faster."""
    module, inputs = make(**sizes)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02)
            else:
                parameter.fill_(float(name.endswith("weight")))  # of a normalisation; else a bias
    return module, [torch.randint_like(x, module.model.config.vocab_size) for x in inputs]

"""`generate` on a fused model gives the tokens that it gives in eager, and compiles no graph for each length."""

import copy

import pytest
import torch

pytest.importorskip("transformers")

from transformers import CompileConfig

import aotkit
from tests.fusing.models import built, config
from tests.integrations.models import batch, decoder

GREEDY = {"do_sample": False}
WAYS = {
    "greedy": GREEDY,
    "beams": {"num_beams": 3, "do_sample": False},
    "sampling": {"do_sample": True, "top_k": 8, "temperature": 1.5},
    "static cache": {"do_sample": False, "cache_implementation": "static"},
    "beams, static cache": {"num_beams": 3, "do_sample": False, "cache_implementation": "static"},
    "no repeated n-grams": {"do_sample": False, "no_repeat_ngram_size": 2},
}
WHOLE = {"memory_efficient_fusion": True}
slow = pytest.mark.sweep


def tokens(model, prompt, length, **options):
    torch.manual_seed(3)
    return model.generate(**prompt, max_new_tokens=length, min_new_tokens=length, **options)


def prompt_of(lengths):
    prompt = batch(lengths, left=True)
    del prompt["labels"]
    return prompt


def compiled_graphs(model):
    parts = aotkit.fusion_report(model).modules.values()
    return {part.name: len(part.graphs) for part in parts if part.outcome == "compiled"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("greedy", {}), ("sampling", {}),
        *(pytest.param(way, WHOLE, marks=slow) for way in WAYS),
        *(pytest.param(way, {"regions": ["LlamaDecoderLayer"]}, marks=slow) for way in WAYS),
    ],
)  # fmt: skip
def test_generated_tokens_are_eagers(way, options):
    eager = decoder().eval()
    model = aotkit.fuse(copy.deepcopy(eager), config(**options))

    def assert_same(lengths, length):
        prompt = prompt_of(lengths)
        assert torch.equal(tokens(model, prompt, length, **WAYS[way]), tokens(eager, prompt, length, **WAYS[way]))

    # The first prompt and the first token after it are kinds of their own; then, sizes that have changed are open.
    for lengths, length in [([5, 3], 4), ([7, 6], 4)]:
        assert_same(lengths, length)
    before = compiled_graphs(model)
    assert before
    for lengths, length in [([5, 3], 12), ([8, 9], 6), ([10, 1], 3)]:
        assert_same(lengths, length)
    assert compiled_graphs(model) == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("way", "options"), [("greedy", {}), *(pytest.param(way, WHOLE, marks=slow) for way in WAYS)]
)  # fmt: skip
def test_many_tokens_compile_as_much_as_few(way, options):
    counts = []
    for length in (8, 64):
        torch._dynamo.reset()
        model = aotkit.fuse(decoder().eval(), config(**options))
        tokens(model, prompt_of([5, 3]), length, **WAYS[way])
        counts.append(compiled_graphs(model))
    assert counts[0] == counts[1]
    assert all(0 < count <= 3 for count in counts[0].values())


@pytest.mark.filterwarnings("ignore")
def test_a_static_cache_runs_our_graphs_where_generate_would_compile():
    """As it does on a GPU, by torch.compile."""
    compiling = CompileConfig()
    compiling._compile_all_devices = True
    eager = decoder().eval()
    model = aotkit.fuse(copy.deepcopy(eager), config(**WHOLE))
    prompt = prompt_of([5, 3])
    found = tokens(model, prompt, 4, **WAYS["static cache"], compile_config=compiling)
    assert torch.equal(found, tokens(eager, prompt, 4, **WAYS["static cache"]))
    assert compiled_graphs(model) == {"": 2}  # for the prompt, and for one token
    assert not hasattr(model, "_compiled_call")


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [WHOLE, {}, {"regions": ["T5Block"]}])
@pytest.mark.parametrize("way", ["greedy", "beams"])
def test_an_encoder_decoder_generates_eagers_tokens(way, options):
    eager = built("t5").model.eval()
    model = aotkit.fuse(copy.deepcopy(eager), config(**options))
    for lengths, length in [([5, 3], 4), ([7, 6], 9), ([9, 2], 12)]:
        prompt = prompt_of(lengths)
        assert torch.equal(tokens(model, prompt, length, **WAYS[way]), tokens(eager, prompt, length, **WAYS[way]))
    assert compiled_graphs(model)

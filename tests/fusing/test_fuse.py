"""`fuse` on models of transformers: right, the same model in all other respects, and undone by `unfuse`."""

import copy
import inspect

import pytest
import torch

import aotkit
from tests.fusing.models import COPIES, STEPS, built, can_be_pickled, config, facts, gradients, loss_of, pickled

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::aotkit.errors.EagerCallWarning"),
    pytest.mark.filterwarnings("error::aotkit.errors.RecompilationWarning"),
]

# What of each is compiled, when activations are.
BLOCKS = {
    "gpt2": "GPT2MLP", "llama": "LlamaMLP", "t5": "T5DenseActDense", "bert": "BertIntermediate", "vit": "ViTMLP",
    "clip": "CLIPMLP", "funnel": "FunnelPositionwiseFFN", "phi": "PhiMLP", "gptj": "GPTJMLP", "falcon": "FalconMLP",
    "gemma2": "Gemma2MLP", "qwen2": "Qwen2MLP", "deepseek_v3": "DeepseekV3MLP", "distilbert": "FFN",
    "albert": "NewGELUActivation", "modernbert": "ModernBertMLP", "swin": "SwinMLP", "resnet": "ResNetConvLayer",
    "wav2vec2": "Wav2Vec2FeedForward", "longt5": "LongT5DenseActDense", "switch_transformers":
    "SwitchTransformersDenseActDense", "segformer": None, "opt": None, "mixtral": None,
}  # fmt: skip
FAST = ["gpt2", "llama", "bert", "vit"]
WHOLE = {"memory_efficient_fusion": True}
CASES = [pytest.param(name, {}, marks=[] if name in FAST else pytest.mark.sweep, id=name) for name in BLOCKS]
CASES += [pytest.param(name, WHOLE, marks=pytest.mark.sweep, id=f"{name}-whole") for name in BLOCKS]
INDUCTOR = [(name, {**options, "backend": "inductor"}) for name in ("gpt2", "llama") for options in ({}, WHOLE)]
CASES += [pytest.param(*case, marks=pytest.mark.sweep, id=f"{case[0]}-{[*case[1]]}") for case in INDUCTOR]
CASES += [pytest.param("qwen3_moe", {"regions": ["Qwen3MoeSparseMoeBlock"]}, id="qwen3_moe-region")]


@pytest.mark.thinned
@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_fused_model_is_right_and_the_same_model(name, options, tmp_path):
    training = built(name)
    model, eager = training.model, copy.deepcopy(training.model)
    before, cls, state, signature = facts(model), type(model), model.state_dict(), inspect.signature(model.forward)
    wanted = gradients(eager, training)

    assert aotkit.fuse(model, config(**options)) is model
    assert isinstance(model, cls)
    assert (type(model).__name__, type(model).__module__) == (cls.__name__, cls.__module__)
    assert inspect.signature(model.forward) == signature
    torch.testing.assert_close(gradients(model, training), wanted)
    after = model.state_dict()
    assert [*after] == [*state]
    assert all(after[key].data_ptr() == state[key].data_ptr() for key in state)
    model.eval(), eager.eval()
    torch.testing.assert_close(loss_of(model, training), loss_of(eager, training))
    model.train(), eager.train()
    assert_expected(name, options, aotkit.fusion_report(model))

    for copied in (copy.deepcopy(model), *([pickled(model)] if can_be_pickled(eager) else [])):
        assert type(copied).__name__ == cls.__name__
        assert {*copied.state_dict()} == {*state}
        torch.testing.assert_close(gradients(copied, training), wanted)
    eager.save_pretrained(tmp_path / "eager"), model.save_pretrained(tmp_path / "fused")
    loaded, again = (cls.from_pretrained(tmp_path / name) for name in ("fused", "eager"))
    assert loaded.config.architectures == [cls.__name__]
    torch.testing.assert_close(loaded.state_dict(), again.state_dict())

    aotkit.unfuse(model)
    kept = {
        key: (kind, [a for a in attributes if a in before[key][1]]) for key, (kind, attributes) in facts(model).items()
    }
    assert kept == before


def assert_expected(name, options, report):
    compiled = [part for part in report.modules.values() if part.outcome == "compiled"]
    assert all(part.graphs and not part.eager for part in compiled), str(report)
    if not options:
        assert (BLOCKS[name] is None) == (not compiled)
        assert BLOCKS[name] is None or BLOCKS[name] in {part.cls for part in compiled}, str(report)
    else:
        assert compiled
    assert all(part.reason for part in report.modules.values())


def test_the_zoo_has_all_of_them():
    assert {*BLOCKS} <= {*STEPS}
    assert len(BLOCKS) >= 20


def test_modules_of_a_class_and_copies_share_what_is_compiled():
    training = built("gpt2")
    model = aotkit.fuse(training.model, config())
    gradients(model, training)
    gradients(copy.deepcopy(model), training)
    report = aotkit.fusion_report(model)
    parts = [report.modules[f"transformer.h.{i}.mlp"] for i in (0, 1)]
    assert [len(part.graphs) for part in parts] == [1, 1]
    assert parts[0].graphs[0].saved_bytes < parts[0].graphs[0].eager_bytes
    assert parts[0].saved_bytes == (parts[0].graphs[0].saved_bytes, parts[0].graphs[0].eager_bytes)
    text = str(report)
    assert "transformer.h.0.mlp, transformer.h.1.mlp  GPT2MLP          compiled  1 graph" in text
    assert "NewGELUActivation, with the layers around it" in text
    assert report.json()["transformer.h.0.mlp"]["outcome"] == "compiled"


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_copies_are_apart(make):
    training = built("llama")
    model = aotkit.fuse(training.model, config())
    wanted = loss_of(model, training)
    copied = make(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert torch.equal(loss_of(model, training), wanted)
    aotkit.unfuse(copied)
    assert type(copied).__mro__[1:] == type(aotkit.unfuse(model)).__mro__[1:]
    assert torch.equal(loss_of(model, training), wanted)


@pytest.mark.parametrize("options", [{}, pytest.param({"regions": ["GPT2Block"]}, marks=pytest.mark.sweep)])
def test_dropout_as_in_eager_by_torchs_random_numbers(options):
    training = STEPS["gpt2"].build()
    model, eager = training.model, copy.deepcopy(training.model)
    aotkit.fuse(model, config(random="torch", **options))
    for _ in range(2):  # the first compiles
        torch.testing.assert_close(gradients(model, training), gradients(eager, training))

"""What `fuse` takes as a config, and what it says of others. Nothing has changed then."""

import builtins
import json
from pathlib import Path

import pytest
from torch import nn

import aotkit
from aotkit.fusing.config import config_of

OSLO = {
    "kernel_fusion": {
        "enable": True,
        "memory_efficient_fusion": False,
        "custom_cuda_kernels": ["FusedRMSNorm", "FusedNoRepeatNGram"],
    }
}


def test_oslos_dict_is_taken_as_it_is():
    config = config_of(OSLO)
    assert config.enable
    assert not config.memory_efficient_fusion
    assert config.custom_kernels == ["FusedRMSNorm", "FusedNoRepeatNGram"]


def test_what_oslos_dict_has_besides_may_be_there_but_not_enabled():
    assert config_of({**OSLO, "activation_checkpointing": {"enable": False}}) == config_of(OSLO)
    with pytest.raises(aotkit.UnsupportedError, match=r"'activation_checkpointing'.*gradient_checkpointing_enable"):
        config_of({**OSLO, "activation_checkpointing": {"enable": True}})


def test_a_dict_a_dataclass_and_files_mean_the_same(tmp_path):
    pytest.importorskip("yaml")
    options = {"backend": "nop", "memory_limit": "2GiB", "regions": ["GPT2Block"]}
    (tmp_path / "fuse.json").write_text(json.dumps({"kernel_fusion": options}))
    (tmp_path / "fuse.yaml").write_text("kernel_fusion: {backend: nop, memory_limit: 2GiB, regions: [GPT2Block]}")
    wanted = aotkit.FusionConfig(**options)
    for given in ({"kernel_fusion": options}, wanted, str(tmp_path / "fuse.json"), tmp_path / "fuse.yaml"):
        assert config_of(given) == wanted
    assert config_of(None) == aotkit.FusionConfig()


def test_yaml_without_its_package(tmp_path, monkeypatch):
    def imported(name, *args, **kwargs):
        if name == "yaml":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    original = builtins.__import__
    (tmp_path / "fuse.yaml").write_text("kernel_fusion: {}")
    monkeypatch.setattr(builtins, "__import__", imported)
    with pytest.raises(aotkit.UnavailableError, match="pip install pyyaml"):
        config_of(tmp_path / "fuse.yaml")


def section(**values):
    return {"kernel_fusion": values}


WRONG = [
    (section(memory_eficient_fusion=True), aotkit.UnknownNameError, "Did you mean 'memory_efficient_fusion'"),
    ({"kernel_fuson": {}}, aotkit.UnknownNameError, "'kernel_fuson'.*Did you mean 'kernel_fusion'"),
    ({"backend": "nop"}, aotkit.UnknownNameError, "'backend' at the top.*'kernel_fusion'"),
    (section(custom_kernels=["FusedRmsNorm"]), aotkit.UnknownNameError, "'FusedRmsNorm'.*'FusedRMSNorm'"),
    (section(custom_kernels=[], custom_cuda_kernels=[]), ValueError, "twice"),
    (section(backend="inductr"), aotkit.UnknownNameError, "'inductr'.*'inductor'"),
    (section(partition="min_cu"), aotkit.UnknownNameError, "'min_cu'.*'min_cut'"),
    (section(regions=["Linea"]), aotkit.UnknownNameError, "'Linea'.*'Linear'"),
    (section(regions="Linear"), TypeError, "regions must be a list"),
    (section(enable="yes"), TypeError, "enable must be True or False"),
    (section(check="no"), ValueError, "check"),
    (section(memory_limit="2 sheep"), ValueError, "2 sheep"),
    (section(memory_limit=0.5, partition="min_cut"), ValueError, "nx_min_cut"),
    ({"kernel_fusion": True}, TypeError, "kernel_fusion must be a dict"),
    ([], TypeError, "dict"),
    (Path("fuse.toml"), ValueError, "toml"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "error", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_told_before_anything_changes(config, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("fuse.toml").touch()
    model = nn.Sequential(nn.Linear(2, 2), nn.GELU())
    with pytest.raises(error, match=message):
        aotkit.fuse(model, config)
    with pytest.raises(error, match=message):
        aotkit.fuse(model[0], config)  # which has nothing to compile
    assert type(model) is nn.Sequential
    aotkit.fuse(model, section(backend="nop"))
    before = [type(module) for module in model.modules()]
    with pytest.raises(error, match=message):
        aotkit.fuse(model, config)
    assert [type(module) for module in model.modules()] == before


def test_disabled_is_as_it_was():
    model = nn.Sequential(nn.Linear(2, 2), nn.GELU())
    assert aotkit.fuse(model, section(enable=False)) is model
    assert type(model) is nn.Sequential


def test_what_cannot_be_fused_at_all():
    with pytest.raises(TypeError, match=r"nn\.Module"):
        aotkit.fuse(abs)
    with pytest.raises(TypeError, match=r"aotkit\.compile"):
        aotkit.fuse(aotkit.compile(nn.Linear(2, 2), backend="nop"))
    with pytest.raises(ValueError, match="not fused"):
        aotkit.fusion_report(nn.Linear(2, 2))

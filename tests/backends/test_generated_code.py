"""What Inductor wrote, as data: what of it runs without Inductor, and what needs all."""

import json
import linecache

import pytest
import torch

import aotkit
from aotkit.backends.inductor_graphs import generated_code
from aotkit.backends.inductor_graphs.generated_code import Loaded

pytestmark = pytest.mark.skipif(
    aotkit.get_backend("inductor").unavailable() is not None, reason="needs the backend inductor"
)


def told(fn, *args):
    runs = []
    inductor = aotkit.get_backend("inductor")

    def spy(gm, inputs):
        runs.append(inductor.inference_compiler(gm, inputs))
        return runs[-1]

    backend = aotkit.Backend(fw_compiler=spy, decompositions=inductor.decompositions)
    with torch.no_grad():
        aotkit.compile(fn, backend=backend, check=False)(*args)
    (run,) = runs
    return run.data()


def written(files, tmp_path):
    paths = {name: tmp_path / f"{name}.so" for name in files}
    for name, content in files.items():
        paths[name].write_bytes(content)
    return paths


def loaded(data, files, tmp_path):
    return aotkit.get_backend("inductor").load(json.loads(json.dumps(data)), written(files, tmp_path))


PROGRAMS = {
    "a kernel": (lambda x: (x * 2).sin(), 1),
    "two kernels and a library": (lambda x: (x.sin() @ x).softmax(1), 2),
    "a library alone": (lambda x: x @ x, 0),
    "no computation": (lambda x: x.T, 0),
    "a constant of the code": (lambda x: x * torch.tensor([1.0, 2.0, 3.0]), 1),
    "a reduction": (lambda x: x.double().sum(1), 1),
}


@pytest.mark.thinned
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a CPU")
@pytest.mark.parametrize(("fn", "kernels"), PROGRAMS.values(), ids=PROGRAMS)
def test_kernels_for_a_cpu_run_without_inductor(fn, kernels, tmp_path):
    x = torch.randn(3, 3)
    if (found := told(fn, x)) is None:
        return  # with tensors of this process
    data, files = found
    assert len(files) == kernels
    assert generated_code.INDUCTOR not in data["running"]
    run = loaded(data, files, tmp_path)
    (result,) = run([x])
    assert torch.equal(result, aotkit.compile(fn, backend="inductor", check=False)(x))
    (again,) = run.unchecked([x])
    assert torch.equal(result, again)
    assert all(kernel.name in data["source"] for kernel in run.kernels(()))


def test_pointwise_code_needs_no_inductor(tmp_path):
    data, files = told(lambda x: (x * 2).sin(), torch.randn(3, 3))
    assert len(files) == 1
    assert all(name not in data["running"] for name in ("async_compile", "benchmark"))


def test_the_code_is_shown_in_tracebacks(tmp_path):
    x = torch.randn(3, 3)
    data, files = told(lambda x: (x * 2).sin(), x)
    loaded(data, files, tmp_path)
    assert linecache.getline(f"<Inductor {data['key']}>", 1)


def test_where_a_part_is_not_known_the_whole_code_runs(monkeypatch, tmp_path):
    x = torch.randn(3, 3)
    data, files = told(lambda x: (x * 2).sin(), x)
    assert data["source"] != data["running"]
    (want,) = loaded(data, files, tmp_path)([x])
    for libraries in ([], None):
        whole = {**data, "running": data["source"], "libraries": libraries}
        assert torch.equal(loaded(whole, {}, tmp_path)([x])[0], want)


@pytest.mark.parametrize(
    "source",
    [
        "def call(args):\n    return unheard_of(args)\n",
        "import torch._inductor.utils\ndef call(args):\n    return torch._inductor.utils.f(args)\n",
        "int main() {}",
    ],
)
def test_code_that_calls_something_else_needs_inductor(source):
    calling, _ = generated_code._calling(source)
    assert calling is None


def test_inputs_that_are_not_aligned_are_copied(tmp_path):
    data, files = told(lambda x: (x * 2).sin(), torch.randn(64))
    run = Loaded(data, {"inputs_to_check": [0], "mutated_input_idxs": []}, written(files, tmp_path))
    x = torch.randn(65)[1:]
    (result,) = run([x])
    assert torch.allclose(result, (x * 2).sin())

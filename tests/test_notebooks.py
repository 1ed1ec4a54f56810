"""The notebooks run from top to bottom, show what they talk about, and hold nothing of the machine they ran on."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
# What each notebook is about, as its outputs say it.
SHOWN = {
    "1_extract_graphs": [
        "16.0 MiB saved",
        "8.0 MiB saved",
        "save for backward add_2, cos",
        "recomputed: 1 operation: cos",
        "return x.cos().cos()",
        "norm.weight",
        "expensive: matrix product",
        "recomputed: gelu",
        "| nx_min_cut budget | 0.5 |",
        "'clip' needs the value of a tensor",
    ],
    "2_write_a_backend": [
        "aten.exp.default",
        "differs from eager",
        "equals eager",
        "['aten.sigmoid.default', 'aten.mul.Tensor']",
        "no quantum computer was found",
        "mul_tensor = exp_default * cos_default",
        "Did you mean 'quantum'?",
    ],
    "3_write_a_partitioner": [
        "mm_5",
        "inputs_only      0 KiB saved, equals eager",
        "everything     288 KiB saved, equals eager",
        "save for backward primals_1, primals_2, primals_3, mm, mm_1",
        "'dropout' with backend 'nop' and partition 'inputs_only' differs from eager",
        "'dropout' with backend 'nop' and partition 'inputs_and_draws' equals eager",
    ],
    "4_compare": [
        "default                      2048 KiB saved, again: nothing",
        "nx_min_cut                   1024 KiB saved, again: gelu",
        "nx_min_cut.budget('512 KiB')    0 KiB saved, again: mm, gelu",
        "mm               1024 KiB  expensive: matrix product, 67.1 MFLOP",
        "saved only in A: 1 storage, 1.0 MiB",
        "1024 KiB  ",
        "nop       backward   6 kernels, the largest of 1 operations",
        "inductor  forward    3 kernels, the largest of 5 operations",
        "inductor  nx_min_cut",
    ],
    "5_whole_models": [
        "transformer.h.0.mlp, transformer.h.1.mlp, 2 more  GPT2MLP          compiled",
        "('GPT2LMHeadModel', True, True)",
        "saved for the backward pass: 7.2 MiB, in eager 21.3 MiB",
        "0.63 MiB with checkpoints, 0.49 MiB with a limit of 512 KiB",
        "greedy gives eager's tokens",
        "{'num_beams': 3} gives eager's tokens",
        "{'cache_implementation': 'static'} gives eager's tokens",
        "0 graphs more for longer texts",
    ],
}
LONG = "2_write_a_backend", "3_write_a_partitioner", "4_compare", "5_whole_models"
MACHINE = re.compile(r"(?:^|[\s\"'(`])/(?:home|root|tmp|usr|var|work|Users|private)/")


def texts(notebook):
    """Everything that the cells put out, as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [text for output in outputs for text in [output.get("text", ""), *output.get("data", {}).values()] if text]


def assert_shows(notebook, name):
    everything = "\n".join(texts(notebook))
    missing = [text for text in SHOWN[name] if text not in everything]
    assert not missing, f"{name} no longer shows {missing}"


def test_every_notebook_is_tested():
    assert sorted(SHOWN) == [path.stem for path in PATHS]


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=pytest.mark.sweep) if p.stem in LONG else p for p in PATHS],
    ids=lambda p: p.stem,
)
def test_it_runs_and_shows_what_it_is_about(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()  # raises CellExecutionError, with the traceback, where a cell fails
    assert_shows(notebook, path.stem)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_stored_outputs_are_complete_and_portable(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert_shows(notebook, path.stem)
    assert not [text for text in texts(notebook) if MACHINE.search(text)], "outputs name folders of a machine"
    assert not MACHINE.search(json.dumps(notebook.metadata))
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run it from top to bottom"
    assert not [o for cell in cells for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"]

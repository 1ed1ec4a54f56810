"""The lines of whole models' nodes are those at which eager runs the same operators, or ran what they differentiate."""

import difflib
import operator
import re
import traceback
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import aotkit
from aotkit.benchmark import transformers_models as hf
from aotkit.benchmark.models import ResNet
from aotkit.compiled.modules import function_of
from aotkit.passes.nodes import packet_name
from aotkit.passes.source import _is_library, source_line

FRAME = re.compile(r'  File "(.*)", line (\d+), in')
# By the names that eager has for them.
FUNCTIONAL = {"_native_batch_norm_legit_functional": "native_batch_norm"}


class Ran(NamedTuple):
    """An operator with the shape of its first result, and the innermost line that is no library's."""

    operator: str
    shape: torch.Size | None
    line: tuple[str, int] | None


def shape(value: Any) -> torch.Size | None:
    return next((v.shape for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)), None)


class Recorder(TorchDispatchMode):
    """What eager runs, in forward and in backward, whose nodes remember where they were made."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: dict[str, list[Ran]] = {"forward": [], "backward": []}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        node = torch._C._current_autograd_node()
        if node is None:
            stack = [(f.filename, f.lineno or 0) for f in reversed(traceback.extract_stack())]
        else:
            found = (FRAME.match(text) for text in node.metadata.get("traceback_") or ())
            stack = [(m[1], int(m[2])) for m in found if m][::-1]
        line = next(((file, line) for file, line in stack if file != __file__ and not _is_library(file)), None)
        part = "forward" if node is None else "backward"
        self.ran[part].append(Ran(func._overloadpacket.__name__, shape(result), line))
        return result


def gpt2() -> Any:
    pytest.importorskip("transformers", minversion="5", reason="needs Hugging Face transformers 5")
    return hf.with_values(hf.gpt2, layers=2, heads=2, width=32, batch=2, length=16)


def resnet() -> Any:
    return ResNet(blocks=(1, 1), classes=10), (torch.randn(2, 3, 32, 32), torch.randint(10, (2,)))


@pytest.mark.parametrize("build", [gpt2, resnet])
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_lines_are_those_of_eager(build: Any) -> None:
    module, inputs = build()
    with hf.single_sequences():
        compiled = aotkit.compile(module.train(), backend="nop", check=False, random="torch")
        graphs = function_of(compiled).graphs(*inputs)
        with torch.autograd.set_detect_anomaly(True), Recorder() as eager:
            module(*inputs).backward()
    for part, ran in eager.ran.items():
        own = []
        for node in getattr(graphs, part).graph.nodes:
            if node.op == "call_function" and node.target is not operator.getitem:
                line, name = source_line(node), packet_name(node)
                assert line is not None, node
                own.append(Ran(FUNCTIONAL.get(name, name), shape(node.meta["val"]), (line.file, line.line)))
        # Tracing leaves out a few views and puts in others; what both have is compared.
        matcher = difflib.SequenceMatcher(None, [str(o[:2]) for o in own], [str(o[:2]) for o in ran], autojunk=False)
        pairs = [(own[m.a + i], ran[m.b + i]) for m in matcher.get_matching_blocks() for i in range(m.size)]
        assert len(pairs) > 0.7 * len(own)
        wrong = [(a, b) for a, b in pairs if a.line != b.line]
        assert len(wrong) <= 0.01 * len(pairs), wrong

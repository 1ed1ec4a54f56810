"""Compiled graphs that outlive a process: what a call of them needs, as data, and the same made again of that.

Only for the plain case, whose calls need nothing of AOTAutograd (`runtime/way_in.py`), and for backends that make data
of what they compiled.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from aotkit.capture.recipe import Recipe
from aotkit.inspection import Graphs, graphs_data, graphs_of
from aotkit.interfaces import Backend, Boxed
from aotkit.keep import is_kept, keep, kept, kept_file, machine, name_of
from aotkit.passes import Tables, graph_data, graph_of
from aotkit.runtime import Gradients, Layout, Plain, WayIn, plain_way, sparing_retained, warn_user
from aotkit.stages import Pipeline, Product, account, load_with_chunks
from aotkit.timeline import stage
from aotkit.torch_private.switches import changed_settings, environment
from aotkit.torch_private.tensors import dtype_named

KIND = "graphs"


@dataclass
class KeptGraphs:
    """Graphs that an earlier process compiled.

    Attributes:
        way_in: how a call comes to them.
        record: of `as_data`.
        files: where those are that it names.
    """

    way_in: WayIn
    record: Mapping[str, Any]
    files: Mapping[str, Path]
    _runs: Mapping[str, Boxed]
    _told: bytes

    @property
    def texts(self) -> Sequence[str] | None:
        """What `account` told of them there."""
        return self.record["texts"]  # type: ignore[no-any-return]

    @property
    def more(self) -> Mapping[str, Any]:
        """What was kept with them."""
        return self.record["more"]  # type: ignore[no-any-return]

    @cached_property
    def _data(self) -> Any:
        """What only those who look at graphs need."""
        return json.loads(zlib.decompress(self._told))

    @cached_property
    def graphs(self) -> Graphs:
        """What was compiled."""
        return graphs_of(self._data["graphs"])

    @cached_property
    def products(self) -> Mapping[str, Product]:
        """What the compilers made of it."""
        data = self._data
        return {
            role: Product(run, graph_of(data["compiled"][role], data["tables"])) for role, run in self._runs.items()
        }


Made = Pipeline | KeptGraphs


def graphs_made(made: Made | None, input_names: Sequence[str], why_backend: str) -> Graphs | None:
    """What was compiled, now or before, with what this function calls its inputs, and why by this backend."""
    if made is None or (graphs := made.graphs) is None:
        return None
    graphs.input_names, graphs.why_backend = input_names, why_backend
    return graphs


def texts_of(made: Made) -> Sequence[str] | None:
    """What `account` tells of it."""
    return made.texts if isinstance(made, KeptGraphs) else account(made.products)


def surroundings(recipe: Recipe) -> list[str] | None:
    """How it is compiled, where another process finds the same under the same names; None where it might not.

    The code of aotkit's own backends and partitioners is known to `machine`.
    """
    compiler = recipe.backend.fw_compiler
    are_named = recipe.compiler_by_name("fw_compiler", compiler) and recipe.partitioner_by_name()
    makers = {getattr(made, "__module__", "").partition(".")[0] for made in (compiler, recipe.partition)}
    if not are_named or makers != {"aotkit"} or recipe.dynamic or (settings := changed_settings()) is None:
        return None
    # "cuda" without a number stands for that of the process: the first, until CUDA is in use.
    device = str(torch.cuda.current_device() if torch.cuda.is_initialized() else 0)  # type: ignore[no-untyped-call]
    how = [recipe.backend_name, recipe.partition_name, recipe.random]
    return [recipe.name, *how, device, str(environment()), *settings]


def keep_graphs(parts: Sequence[str] | None, pipeline: Pipeline, plain: Plain | None, more: Mapping[str, Any]) -> None:
    """Keep what a pipeline has compiled, for `kept_graphs` of a later process.

    Args:
        parts: all that decides what is compiled, but for the machine; None: that cannot be told.
        plain: from the way in.
        more: to be kept with it.
    """
    if parts is None or not is_kept():
        return
    with stage("keep the graphs"):
        if (found := as_data(pipeline, plain, more)) is not None:
            keep(KIND, (*machine(), *parts), *found)


def as_data(
    made: Made, plain: Plain | None, more: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, bytes]] | None:
    """Compiled graphs as JSON, and the files that it names; None if another process could not have the same of that."""
    if isinstance(made, KeptGraphs):
        with suppress(OSError):  # they have been deleted since
            return made.record, {name: path.read_bytes() for name, path in made.files.items()}
        return None
    if plain is None or (told := _told(made)) is None:
        return None
    products: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for role, product in made.products.items():
        tell = getattr(product.run, "data", None)
        if tell is None or (found := tell()) is None:
            return None
        data, contents = found
        names = {key: name_of(content, ".so") for key, content in contents.items()}
        files.update(zip(names.values(), contents.values(), strict=True))
        products[role] = {"data": data, "files": names}
    files[name_of(told, ".z")] = told
    record = {
        "products": products,
        "told": name_of(told, ".z"),
        "donated": list(made.donated),
        "plain": _plain_as_data(plain),
        "texts": account(made.products),
        "more": more,
    }
    return record, files


def kept_graphs(parts: Sequence[str] | None, backend: Backend, name: str, *, guarded: bool) -> KeptGraphs | None:
    """What was kept for these texts, ready to be called; None if nothing was, or what it consists of is gone.

    Args:
        guarded: whether each call is compared with the inputs that the graphs were compiled for.
    """
    if parts is None or backend.load is None or not is_kept():
        return None
    with stage("look for graphs"):
        return _found(parts, backend, name, guarded)


def _found(parts: Sequence[str], backend: Backend, name: str, guarded: bool) -> KeptGraphs | None:
    if (record := kept(KIND, (*machine(), *parts))) is None:
        return None
    found = {file: kept_file(file) for file in files_of(record)}
    files = {file: path for file, path in found.items() if path is not None}
    if len(files) < len(found):
        return None
    try:
        return graphs_from(record, files, backend, name, guarded=guarded)
    except Exception as e:  # such as a library that is gone since
        warn_user(
            f"graphs of {name!r} that an earlier process compiled do not load: {type(e).__name__}: {e}. They are "
            "compiled anew.",
            RuntimeWarning,
        )
        return None


def files_of(record: Mapping[str, Any]) -> list[str]:
    """The names of the files that a record speaks of."""
    return [record["told"], *(file for product in record["products"].values() for file in product["files"].values())]


def graphs_from(
    record: Mapping[str, Any], files: Mapping[str, Path], backend: Backend, name: str, *, guarded: bool
) -> KeptGraphs:
    """Compiled graphs of what `as_data` gave.

    Args:
        files: where they are now.
    """
    assert backend.load is not None
    runs = {
        role: load_with_chunks(backend, product["data"], {key: files[file] for key, file in product["files"].items()})
        for role, product in record["products"].items()
    }
    run, backward = runs["forward"], runs.get("backward")
    if guarded:
        run = getattr(run, "unchecked", run)
    if backward is not None:
        backward = sparing_retained(backward, record["donated"])
    told = files[record["told"]].read_bytes()  # at once: it may be deleted before somebody looks at the graphs
    return KeptGraphs(plain_way(run, backward, _plain_of(record["plain"]), name), record, files, runs, told)


def _told(pipeline: Pipeline) -> bytes | None:
    """The graphs, for those who look at them; None where they are no data."""
    tables = Tables()
    compiled = {role: graph_data(product.graph, tables) for role, product in pipeline.products.items()}
    assert pipeline.graphs is not None
    graphs = graphs_data(pipeline.graphs)
    if graphs is None or None in compiled.values():
        return None
    return zlib.compress(json.dumps({"graphs": graphs, "compiled": compiled, "tables": tables.data()}).encode(), 1)


def _plain_as_data(plain: Plain) -> dict[str, Any]:
    data = asdict(plain)
    if (gradients := plain.gradients) is not None:
        uses = None if gradients.uses is None else [sorted(used) for used in gradients.uses]
        layouts = [[*map(list, layout[:2]), *map(str, layout[2:])] for layout in gradients.layouts]
        data["gradients"] = {"layouts": layouts, "uses": uses, "given": gradients.given, "tangents": gradients.tangents}
    return data


def _plain_of(data: Mapping[str, Any]) -> Plain:
    gradients = data["gradients"]
    if gradients is not None:
        uses = None if gradients["uses"] is None else [frozenset(used) for used in gradients["uses"]]
        layouts = [_layout(*layout) for layout in gradients["layouts"]]
        gradients = Gradients(gradients["tangents"], layouts, gradients["given"], uses)
    return Plain(data["outputs"], data["views"], data["written"], gradients)


def _layout(shape: list[int], stride: list[int], dtype: str, device: str) -> Layout:
    return Layout(tuple(shape), tuple(stride), dtype_named(dtype), torch.device(device))

"""One graph divided among backends: which operations each gets, and what runs of what their compilers make."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.errors import CompileError, is_out_of_memory
from aotkit.interfaces import Boxed, GraphCompiler
from aotkit.passes import (
    Region,
    Regions,
    copy_graph,
    digest,
    graph_data,
    is_operation,
    is_symbol,
    operator_name,
    producer,
    promise_strides,
    results_of,
    source_line,
)
from aotkit.stages.calls import Product, blaming, boxed_call, checked_once
from aotkit.stages.graph_launches import Around, Kernel, data_of, explained, source_of
from aotkit.stages.regions.finding import Operations, aten_kernels, find_regions, is_copy
from aotkit.stages.regions.parts import Part, inputs_of, parts_in_order, run_parts, subgraph
from aotkit.torch_private.aotautograd import part_of_graph

_log = logging.getLogger("aotkit")
NO_TENSORS = "computes no tensors that are read one by one"


@dataclass(frozen=True)
class Options:
    """See `aotkit.by_region`.

    Attributes:
        horizontal: None: as each backend says.
        skip_ops: names of operators, with or without overload.
    """

    min_region_size: int = 2
    horizontal: bool | None = None
    skip_ops: frozenset[str] = frozenset()
    strict: bool = False

    def skip(self, op: Node) -> str | None:
        """Why no backend gets an operation, or None if one may."""
        names = {str(op.target), str(getattr(op.target, "overloadpacket", op.target))}
        return next((f"{name!r} is in skip_ops" for name in sorted(names & self.skip_ops)), None)


@dataclass(frozen=True)
class Choice:
    """A backend's compiler for graphs of one kind, and what it takes of them."""

    name: str
    compiler: GraphCompiler
    declines: Callable[[Node], str | None] | None
    horizontal: bool = False

    def declined(self, op: Node) -> str | None:
        """Why it does not take an operation."""
        if self.declines is None:
            return None
        reason = self.declines(op)
        if reason is not None and not isinstance(reason, str):
            raise TypeError(f"`declines` of backend {self.name!r} must return a reason or None, not {reason!r}.")
        return reason


def _is_offered(op: Node) -> bool:
    """Whether it computes tensors, each of which is read by itself."""
    value = op.meta.get("val")
    return isinstance(value, Tensor) or (isinstance(value, tuple | list) and all(producer(u) is op for u in op.users))


class Tried:
    """What a compiler returned; if it fails on its first run, on which some compile, something else."""

    _boxed_call = True

    def __init__(self, product: Product, by: str, instead: Callable[[Exception], GraphModule]) -> None:
        self._product, self._run, self._instead = product, boxed_call(product.run), instead
        self._by = by
        self._is_tried = False

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self._is_tried:
            return self._run(args)
        given = list(args)
        try:
            results = self._run(args)
        except Exception as e:
            graph = self._instead(e)
            self._product, self._run = Product(graph, graph), boxed_call(copy_graph(graph))
            results = self._run(given)
        self._is_tried = True
        return results

    @property
    def source(self) -> str | None:
        return source_of(self._product)

    def data(self) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """With the graph, for `stages.regions.load`."""
        if isinstance(self._product.run, GraphModule):
            return data_of(self._product)
        found, graph = data_of(self._product), graph_data(self._product.graph)
        return None if found is None or graph is None else ({"by": self._by, "own": found[0], "graph": graph}, found[1])

    def kernels(self, inputs: Sequence[Any]) -> Sequence[Kernel]:
        return explained(self._product).kernels(inputs)

    def observed(self, inputs: list[Any], around: Around) -> Sequence[Any]:
        return explained(self._product).observed(inputs, around)


@dataclass(frozen=True)
class RegionCompiler:
    """A graph compiler that hands regions of a graph to other compilers. What became of it is in `gm.meta`.

    Attributes:
        instead: digest of a region -> who compiles it, in place of who takes it.
    """

    choices: tuple[Choice, ...]
    options: Options
    instead: Mapping[str, Choice] = field(default_factory=dict, hash=False)

    @property
    def __name__(self) -> str:
        return ", ".join(choice.name for choice in self.choices)

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        choices, given = self.choices, gm
        while True:  # once more without an operation that a compiler does not take, though it was not declined
            try:
                run = _Division(given, choices, self.options, self.instead).compiled(example_inputs)
            except _Refused as e:
                choices = tuple(e.without(choice) for choice in choices)
                given = e.graph or given
            else:
                gm.meta["regions"] = given.meta["regions"]
                return run


class _Refused(Exception):
    """A compiler does not take some operations of a region.

    Attributes:
        graph: a copy of the graph, if that is what the compiler was given, which may have changed it.
    """

    def __init__(self, choice: Choice, operations: Sequence[str], reason: str, graph: GraphModule | None) -> None:
        super().__init__(reason)
        self.graph = graph
        self._name, self._operations, self._reason = choice.name, operations, reason

    def without(self, choice: Choice) -> Choice:
        """What is offered to a backend from now on."""
        if choice.name != self._name:
            return choice
        return replace(choice, declines=lambda op: self._reason if op.name in self._operations else choice.declined(op))


class _Division:
    """The regions of one graph."""

    def __init__(
        self, gm: GraphModule, choices: Sequence[Choice], options: Options, instead: Mapping[str, Choice]
    ) -> None:
        self._gm, self._instead = gm, instead
        self._options = options
        self._choices = choices
        self._ops = Operations(gm)
        self._offered = list(filter(_is_offered, self._ops.nodes))
        self._refusals: dict[Node, list[str]] = {op: [] for op in self._offered}
        self._regions: list[Part] = []
        for choice in choices:
            self._let_choose(choice)
        if options.strict:
            self._require_all_taken()

    def _let_choose(self, choice: Choice) -> None:
        others = [[n for n in part.nodes if n in self._refusals and n not in part.sources] for part in self._regions]
        gone = {op for region in others for op in region}
        reasons = {op: self._why_not(choice, op) for op in self._offered if op not in gone}
        taken = [op for op, reason in reasons.items() if reason is None]
        regions, refused = find_regions(self._ops, taken, others, self._is_horizontal(choice))
        for region in regions:
            own = self._ops.nodes_of(region)
            sources = self._sources(choice, own)
            nodes = sorted({*own, *sources})
            size = sum(aten_kernels(op) for op in region if op not in self._ops.views)
            if size < self._options.min_region_size:
                text = f"in a region of {size}, and min_region_size is {self._options.min_region_size}"
                refused |= dict.fromkeys(region, text)
            elif not (inputs := inputs_of(nodes)):
                refused |= dict.fromkeys(region, "in a region without inputs")
            else:
                self._regions.append(Part(nodes, choice, sources, inputs))
        for op, reason in (reasons | refused).items():
            if reason is not None:
                self._refusals[op].append(reason)

    def _sources(self, choice: Choice, nodes: list[Node]) -> frozenset[Node]:
        """The constants that nodes read, and with `horizontal` the views, as far as the backend takes them."""
        stack, found = list(nodes), set(nodes)
        while stack:
            for node in stack.pop().all_input_nodes:
                own = producer(node)
                is_one = node in self._ops.constants or (self._is_horizontal(choice) and own in self._ops.views)
                if is_one and node not in found and self._why_not(choice, own) is None:
                    found.add(node)
                    stack.append(node)
        return frozenset(found.difference(nodes))

    def _is_horizontal(self, choice: Choice) -> bool:
        return choice.horizontal if self._options.horizontal is None else self._options.horizontal

    def _why_not(self, choice: Choice, op: Node) -> str | None:
        return self._options.skip(op) or choice.declined(op)

    def _require_all_taken(self) -> None:
        for op, reasons in self._refusals.items():
            if op in self._ops.views or self._options.skip(op) or any(c.declined(op) is None for c in self._choices):
                continue
            why = "; ".join(f"{c.name}: {reason}" for c, reason in zip(self._choices, reasons, strict=True))
            at = f" at {line}" if (line := source_line(op)) else ""
            raise CompileError(f"strict=True, and no backend takes {op.name} ({operator_name(op)}){at}: {why}")

    def compiled(self, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        """A function that runs the graph."""
        ordered = parts_in_order(self._gm, self._ops, self._regions)
        if self._is_whole(ordered):
            run, _, _ = self._try(ordered[0], self._gm, example_inputs)
        else:
            run = run_parts(self._gm, ordered, self._compile)
        self._gm.meta["regions"] = self._report(ordered)
        return run

    def _is_whole(self, ordered: Sequence[Part]) -> bool:
        """Whether one region is all of the graph, so that its compiler may have the graph itself."""
        results, inputs = results_of(self._gm), self._gm.graph.find_nodes(op="placeholder")
        same = len(ordered) == 1 and ordered[0].choice is not None and ordered[0].inputs == list(inputs)
        return same and len(results) == len(ordered[0].outputs) and set(results) == set(ordered[0].outputs)

    def _compile(self, part: Part) -> tuple[Boxed, Product]:
        gm = subgraph(self._gm, part.nodes, part.inputs, part.outputs)
        promise_strides(gm, len(part.outputs), ())  # other parts were traced with these strides
        with part_of_graph():
            product, kept, blame = self._try(part, gm, [n.meta["val"] for n in part.inputs])
        run = boxed_call(product)
        return checked_once(run, run, kept, blame), Product(product, kept)

    def _try(
        self, part: Part, gm: GraphModule, example_inputs: Sequence[Tensor]
    ) -> tuple[Callable[..., Any], GraphModule, Callable[[], AbstractContextManager[None]]]:
        """Compile the graph of a region, or leave it as it is."""
        kept, part.digest = copy_graph(gm), digest(gm)
        part.by = choice = self._instead.get(part.digest, part.choice)
        names = [n.name for n in part.nodes if n in self._refusals]
        text = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        blame = functools.partial(blaming, f"backend {choice.name!r} failed on a region ({text})", kept)
        try:
            with blame():
                product = Product(choice.compiler(gm, example_inputs), kept)
                return Tried(product, choice.name, functools.partial(self._as_it_is, part, kept, text)), kept, blame
        except CompileError as e:
            cause = e.__cause__
            may_do_without = choice is part.choice and not self._options.strict
            if isinstance(cause, CompileError) and cause.operation in names and may_do_without:
                reason = cause.reason or str(cause)
                operations = self._behind(cause.operation, names) or [cause.operation]
                raise _Refused(choice, operations, reason, kept if gm is self._gm else None) from e
            return self._as_it_is(part, kept, text, e), kept, blame

    def _behind(self, name: str, names: Sequence[str]) -> list[str]:
        """Views of the region that an operation reads, of an input or a copy, and the copy: ATen takes those for less.

        They are what makes the operation hard: a part of a dimension of several, say.
        """
        found: list[str] = []
        for read in next(n for n in self._ops.nodes if n.name == name).all_input_nodes:
            chain, node = [], producer(read)
            while node in self._ops.views and node.name in names:
                chain.append(node.name)
                node = producer(next(n for n in node.all_input_nodes if not is_symbol(n)))
            if node.name not in names:
                found += chain
            elif is_copy(node):
                found += [*chain, node.name]
        return found

    def _as_it_is(self, part: Part, kept: GraphModule, text: str, error: Exception) -> GraphModule:
        """In place of what failed; `strict`, it fails."""
        cause = (isinstance(error, CompileError) and error.__cause__) or error
        if self._options.strict or is_out_of_memory(error):
            raise error
        part.failure = f"{type(cause).__name__}: {cause}"
        if part.region is not None:
            part.region.failure = part.failure
        message = "Backend %r cannot compile a region (%s), which runs as it is: %s"
        _log.warning(message, part.by.name, text, part.failure)
        return copy_graph(kept)

    def _report(self, ordered: Sequence[Part]) -> Regions:
        regions, rest = [], set[Node]()
        for part in ordered:
            if part.choice is None:
                rest.update(part.nodes)
                continue
            nodes = [n.name for n in part.nodes if n in self._refusals]
            inputs, outputs = (tuple(n.name for n in end) for end in (part.inputs, part.outputs))
            part.region = Region(part.by.name, tuple(nodes), inputs, outputs, part.failure, part.digest)
            regions.append(part.region)
        inside = {name for region in regions for name in region.nodes}
        outside = {op.name: tuple(why) for op, why in self._refusals.items() if op.name not in inside}
        for op in self._ops.nodes:
            if op not in self._refusals and is_operation(op):
                outside[op.name] = (NO_TENSORS,) * len(self._choices)
        for op in sorted(rest & self._ops.constants):
            reasons = (self._why_not(choice, op) for choice in self._choices)
            outside[op.name] = tuple(reason or "read outside of its regions, too" for reason in reasons)
        return Regions(tuple(choice.name for choice in self._choices), tuple(regions), outside)

"""What happens to the graphs of one compilation: joint pass, cut, copies for inspection, compilers, first run."""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.fx import GraphModule

from aotkit.errors import CompileError
from aotkit.interfaces import Backend, Boxed, GraphCompiler, Partitioner
from aotkit.passes import (
    assigning,
    copy_changing_inputs,
    copy_graph,
    copy_saved_mutated_inputs,
    correct_statistics,
    credit_backward,
    drop_unsaved_copies,
    effect_tokens,
    forbid_repeating_collectives,
    gradient_uses,
    keep_copies,
    promise_strides,
    refuse_sparse,
    results_of,
    return_new_storages,
    save_viewed_inputs,
    separate_gradients,
)
from aotkit.runtime import CompiledGraphs, collecting, donated_inputs, outside_dynamo, sparing_retained
from aotkit.stages.calls import Product, blaming, boxed_call, checked_once
from aotkit.stages.chunks import compile_with_chunks, compute_in_chunks
from aotkit.stages.own_operators import decompositions_of, recomputable
from aotkit.stages.regions import Regions
from aotkit.stages.verifier import PLUGINS, Doors, is_wanted
from aotkit.timeline import stage
from aotkit.torch_private.fake_tensors import outside_fake_mode
from aotkit.torch_private.fx import renew_code

if TYPE_CHECKING:
    from aotkit.inspection import Graphs


class Pipeline:
    """The compilers and the partitioner of one compilation as AOTAutograd takes them; fills `graphs` and `products`.

    Attributes:
        donated: which inputs of the backward graph it may overwrite.
        strides: those of the function's outputs in eager, which whoever traces tells.
        lasting: which of the function's inputs are taken to keep their values until the backward pass; so, too.
        guarded: whether each call is compared with the inputs that the forward graph was compiled for; so, too.
        assigns_data: whether the function assigns an input's `.data`, which AOTAutograd takes in graphs alone; so, too.
    """

    def __init__(self, graphs_of: "functools.partial[Graphs]", backend: Backend, partition: Partitioner) -> None:
        self._new_graphs = graphs_of
        self._names = graphs_of.keywords  # of the function, the backend and the partitioner
        self._backend = backend
        self._partition = partition
        self._joint: GraphModule | None = None
        self._backward: GraphModule | None = None
        self._num_outputs: int | None = None
        self.gradient_uses: Sequence[frozenset[int]] = ()
        self.graphs: Graphs | None = None
        self._compiled: dict[str, tuple[Boxed, GraphModule]] = {}
        self.products: dict[str, Product] = {}
        self.donated: Sequence[int] = ()
        self._regions: dict[str, Regions] = {}
        self._backward_inputs: list[Any] = []
        self.strides: Sequence[Sequence[Any] | None] = ()
        self.lasting: Sequence[bool] = ()
        self.guarded = self.assigns_data = False
        self._doors = Doors(self._names) if is_wanted() else None

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments for AOTAutograd."""
        backend, fw = self._backend, self._backend.fw_compiler
        return {
            "fw_compiler": functools.partial(self._forward, fw),
            "bw_compiler": functools.partial(self._compile, backend.bw_compiler or fw, "backward"),
            "inference_compiler": functools.partial(self._forward, backend.inference_compiler or fw),
            "partition_fn": self._cut,
            "keep_inference_input_mutations": backend.writes_inputs or self.assigns_data,
            "decompositions": decompositions_of(backend),
        }

    def compiled(self) -> CompiledGraphs:
        """What the compilers made of the graphs."""
        return CompiledGraphs(*self._compiled["forward"], *self._compiled.get("backward", ()))

    def _cut(
        self, joint: GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        self._num_outputs = num_fwd_outputs
        if self._doors is not None:
            self._doors.begin("joint", joint, [*joint_inputs[0], *joint_inputs[1]], num_fwd_outputs)
        self._run(correct_statistics, joint, joint=joint)
        self.gradient_uses = gradient_uses(joint, num_fwd_outputs)
        refuse_sparse(joint)
        self._run(copy_changing_inputs, joint, self.lasting, joint=joint)
        self._run(keep_copies, joint, joint=joint)
        self._run(forbid_repeating_collectives, joint, joint=joint)
        self._joint_pass("joint", joint, joint_inputs)
        credit_backward(joint)
        self._joint = copy_graph(joint)
        drop_unsaved_copies(self._joint)
        with stage("partition"), self._blame("partitioner", "joint", self._joint), recomputable():
            parts = self._partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
            forward, backward = _two_graphs(parts, num_fwd_outputs, len(joint_inputs[1]))
        both = {"forward": forward, "backward": backward}
        self._after("partitioner", **both)
        self._run(drop_unsaved_copies, forward, results_of(forward)[num_fwd_outputs:], **both)
        self._run(copy_saved_mutated_inputs, forward, num_fwd_outputs, **both)
        self._run(save_viewed_inputs, forward, backward, num_fwd_outputs, **both)
        self._run(separate_gradients, backward, **both)
        self._backward = copy_graph(backward)
        return forward, backward

    def _joint_pass(self, role: str, gm: GraphModule, inputs: Any) -> None:
        if self._backend.joint_pass is not None:
            with stage("joint pass"), self._blame("joint pass", role, gm):
                self._backend.joint_pass(gm, inputs)
                renew_code(gm)  # which nobody runs where the graph is cut
            self._after("joint pass", **{role: gm})
        self._run(compute_in_chunks, gm, self._backend, **{role: gm})

    def _run(self, change: Callable[..., Any], *args: Any, **graphs: GraphModule) -> None:
        """A change that is aotkit's own, and the verifier after it."""
        change(*args)
        self._after(change.__name__, **graphs)

    def _after(self, stage: str, given: Sequence[Any] | None = None, /, **graphs: GraphModule) -> None:
        if self._doors is not None:
            self._doors.after(stage, given, **graphs)

    def _forward(self, compiler: GraphCompiler, gm: GraphModule, example_inputs: Sequence[Tensor]) -> Boxed:
        num_outputs = self._num_outputs
        if num_outputs is None:  # no joint graph: inference
            refuse_sparse(gm)
            num_outputs = len(results_of(gm))
            if self._doors is not None:
                self._doors.begin("forward", gm, example_inputs, num_outputs)
            self._joint_pass("forward", gm, ([*example_inputs], []))
        else:
            self._after("AOTAutograd", example_inputs, forward=gm)
            num_outputs -= effect_tokens(gm)
        self.graphs = self._new_graphs(
            forward=copy_graph(gm), joint=self._joint, backward=self._backward, num_outputs=num_outputs,
            regions=self._regions, backward_inputs=self._backward_inputs,
        )  # fmt: skip
        replaced = return_new_storages(gm) if self.assigns_data else ()
        self._after("return_new_storages", forward=gm)
        self._run(promise_strides, gm, num_outputs, self.strides, forward=gm)
        return assigning(self._compile(compiler, "forward", gm, example_inputs), replaced)

    def _compile(self, compiler: GraphCompiler, role: str, gm: GraphModule, example_inputs: Sequence[Tensor]) -> Boxed:
        kept = copy_graph(gm)
        if role == "backward":
            self._after("AOTAutograd", example_inputs, backward=gm)
            self._backward_inputs += example_inputs
        self.donated = donated_inputs(self._backend.reuses_saved) if role == "backward" else ()
        blame = functools.partial(self._blame, "compiler", role, kept)
        with stage(f"compile {role}"), blame(), outside_fake_mode(), collecting():
            product = compile_with_chunks(self._backend, self._names["backend"], compiler, gm, example_inputs)
            run = boxed_call(product)
        self._after("compiler", example_inputs, **{role: kept})
        if role == "forward" and self._backward is not None:
            self._after("compiler", backward=self._backward)
        self.products[role] = Product(product, kept)
        if "regions" in gm.meta:
            self._regions[role] = gm.meta["regions"]
        run = sparing_retained(run, self.donated)
        later = getattr(run, "unchecked", run) if role == "forward" and self.guarded else run
        self._compiled[role] = checked_once(run, later, kept, blame), kept
        called = checked_once(run, run, kept, blame)
        return outside_dynamo(called) if role == "backward" else called

    def _blame(self, stage: str, role: str, gm: GraphModule) -> AbstractContextManager[None]:
        plugin, name = PLUGINS[stage].format(**self._names), self._names["name"]
        return blaming(f"{plugin} failed on the {role} graph of {name!r}", gm)


def _two_graphs(parts: Any, num_fwd_outputs: int, tangents: int) -> tuple[GraphModule, GraphModule]:
    """What a partitioner returned, if that is a forward graph and a backward graph that takes what it saves."""
    if not (isinstance(parts, tuple) and len(parts) == 2 and all(isinstance(p, GraphModule) for p in parts)):
        raise CompileError(f"it returned {type(parts).__name__}, not a tuple (forward, backward) of GraphModules")
    forward, backward = parts
    saved = len(results_of(forward)) - num_fwd_outputs
    # torch adds inputs for the states of CUDA generators after partitioning, and for the order of effects before.
    added = ("bwd_rng_state", "tangents_token")
    inputs = [n for n in backward.graph.find_nodes(op="placeholder") if not n.name.startswith(added)]
    if len(inputs) != saved + tangents:
        saves = f"its forward graph saves {saved} values and there are {tangents} tangents"
        raise CompileError(f"{saves}, but its backward graph takes {len(inputs)} inputs")
    return forward, backward

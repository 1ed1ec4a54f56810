"""Direct capture: a function is traced as it is, and valid for calls of which all that it reads is compared.

The flow of a call: bring the arguments into canonical form; find an entry that is valid for them; if there is none,
look for what else the function reads, trace, partition, compile and check.
"""

import functools
import inspect
import types
from collections.abc import Callable, Sequence, Set
from contextvars import copy_context
from dataclasses import replace
from typing import Any, TypeVar

from aotkit.capture.arguments import Arguments, Parameters, fitted_function, flatten
from aotkit.capture.auto import Unsuited
from aotkit.capture.cache import Entries, Found
from aotkit.capture.eager_calls import EagerVerdicts
from aotkit.capture.entry import Entry, Failure, kept_entry, new_entry, unchecked_entry
from aotkit.capture.executed import Followed, Unfollowed, executed_by
from aotkit.capture.guards import ArgumentGuard, Guard, GuardSource
from aotkit.capture.places import Progress
from aotkit.capture.recipe import Recipe
from aotkit.capture.recompilation import Numbers, Recompilations, describe
from aotkit.capture.refusals import EagerOnly, OwnError
from aotkit.capture.signature import Signature, outcome_in_eager
from aotkit.capture.sizes import OpenSizes
from aotkit.capture.together import settle_graphs
from aotkit.capture.walk import Codes, Walk
from aotkit.checking import CheckReport
from aotkit.errors import AotkitError, CompileError, TraceError, is_out_of_memory
from aotkit.passes import HasNoGraph, has_sizes_of_data
from aotkit.runtime import COMPILE_LOCK, warn_of_fallback
from aotkit.timeline import stage
from aotkit.torch_private.tensors import is_for_dynamo, why_eager_tensor

T = TypeVar("T")
Root = tuple[str, Any, str]  # an expression, the object that it stands for, and a name for people


class DirectFunction:
    """What one function is compiled to by tracing it directly.

    Args:
        on_error: see `compile`.
        plain: refuse functions that reach more than plain code of the user's own; `TraceError` is then always raised.
        opens: leave sizes open that have changed.
    """

    def __init__(self, recipe: Recipe, check: bool, on_error: str, plain: bool, opens: bool) -> None:
        self._recipe = recipe
        self._check = check
        self._on_error = on_error
        self._plain = plain
        self._opens = opens
        self._parameters = Parameters(recipe.fn)
        self._entries = Entries(recipe.name)
        self._verdicts = EagerVerdicts()
        self._recompilations = Recompilations(recipe.name)
        self._numbers = Numbers()
        self._followed: Followed | None = None  # None: all code within reach is

    def __len__(self) -> int:
        """How many kinds of inputs it is compiled for."""
        return len(self._entries)

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found | None:
        """A valid entry for a call, and its flat inputs, if there is one."""
        begun = Progress.begun
        undisturbed = Progress.ended == begun
        try:
            found = self._entries.find(*self._parameters.canonical(args, kwargs))
        except EagerOnly:
            return None
        # Another thread that compiles may have put stand-ins where this one looked for captured tensors.
        return found if undisturbed and Progress.begun == begun else None

    def found_or_compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found:
        """The same; compiles if need be.

        Raises:
            EagerOnly: such a call cannot be compiled this way.
            OwnError: the function itself raises.
            AotkitError: compiling or checking failed.
        """
        if (found := self.find(args, kwargs)) is not None:
            return found
        args, kwargs = self._parameters.canonical(args, kwargs)
        arguments = flatten(args, kwargs)
        self._verdicts.consult(arguments)
        with COMPILE_LOCK, self._verdicts.learning(arguments):
            compile = functools.partial(self._compile, args, kwargs, arguments)
            return self._entries.find(args, kwargs) or self._looking_further(compile)

    def check_again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CheckReport:
        """Compare what is compiled for such a call with eager, for the values of these arguments.

        Raises:
            EagerOnly, OwnError, AotkitError: as `found_or_compiled`.
        """
        with COMPILE_LOCK:
            entry, _ = self.found_or_compiled(args, kwargs)
            if isinstance(entry, Failure):
                raise entry.error
            given = self._parameters.canonical(args, kwargs)

            def compare() -> CheckReport:
                signature, _, _ = self._signature(*given, flatten(*given))
                return entry.compare(entry.recipe, signature, outcome_in_eager(signature))

            return self._looking_further(compare)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Arguments) -> Found:
        signature, guard, walk = self._signature(args, kwargs, arguments)
        for tensor in signature.tensors:
            if (reason := why_eager_tensor(tensor)) is not None:
                raise EagerOnly(reason, final=not is_for_dynamo(tensor))
        numbers = self._numbers.changing(self._parameters, arguments, walk)
        if numbers is not None and self._plain and (self._opens or self._recipe.dynamic):
            raise EagerOnly(numbers)  # TorchDynamo makes inputs of such
        asked = self._entries.changed_sizes(args, kwargs, signature.tensors) if self._opens else None
        entry = self._try_entry(signature, self._recipe_for(signature, asked))
        if isinstance(entry, Entry):
            settle_graphs(lambda: entry.graphs)
        if isinstance(entry, Entry) or not is_out_of_memory(entry.error):
            self._entries.add(args, kwargs, guard, signature.tensors, entry, asked)
        self._recompilations.count(lambda: describe(self._parameters, arguments, signature, walk))
        return entry, signature.tensors

    @stage("find what it reads")
    def _signature(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Arguments
    ) -> tuple[Signature, Guard, Walk]:
        """What a call is given and reaches, and what must not change for it to be such a call again."""
        names, object_names = self._parameters.names_of(arguments)
        source = GuardSource()
        source.require_environment()
        given = ArgumentGuard(source, args, kwargs)
        fn = self._recipe.fn
        objects = zip(given.objects, given.objects.values(), object_names, strict=True)
        roots = [(source.bind(fn), fn, _root_name(fn)), *objects]
        walk = self._walk(functools.partial(find_captures, source, roots, plain=self._plain), arguments)
        return Signature(self._recipe, arguments, walk, names), walk.compile(given.tensors), walk

    def _walk(self, find: Callable[..., Walk], arguments: Arguments) -> Walk:
        """Look into all functions within reach; where that fails, into those alone that run."""
        try:
            return find(self._followed)
        except (EagerOnly, TraceError):
            if self._followed is not None or self._plain:
                raise
            self._followed = copy_context().run(executed_by, self._recipe.fn, arguments, find)
            return find(self._followed)

    def _looking_further(self, attempt: Callable[[], T]) -> T:
        """Try again as long as functions run that were not looked into."""
        while True:
            try:
                return attempt()
            except Unfollowed as e:
                assert self._followed is not None
                self._followed |= {e.code}

    def _recipe_for(self, signature: Signature, open_sizes: OpenSizes | None) -> Recipe:
        recipe = self._recipe
        if open_sizes is not None:
            signature.open_sizes, recipe = open_sizes, replace(recipe, dynamic=True)
        return recipe.for_inputs(signature.tensors)

    def _try_entry(self, signature: Signature, recipe: Recipe) -> Entry | Failure:
        try:
            if (kept := kept_entry(recipe, signature)) is not None:
                if self._check and not kept.was_checked(recipe):
                    kept.check(recipe, signature, outcome_in_eager(signature))
                return kept
            # Its backward pass, which may run functions too, is not watched while it is traced.
            ran = outcome_in_eager(signature) if self._check or signature.is_watched else None
            return new_entry(recipe, signature, ran if self._check else None)
        except Unsuited as e:
            return self._try_entry(signature, e.otherwise.in_recipe(recipe))
        except OwnError as e:
            if signature.is_watched or not is_out_of_memory(e):
                raise
            return unchecked_entry(recipe, signature)
        except HasNoGraph as e:
            raise EagerOnly(str(e), final=True) from None
        except AotkitError as e:
            if self._plain and isinstance(e, CompileError) and has_sizes_of_data(e.graph):
                # TorchDynamo compiles what is before and after.
                line, *_ = str(e).splitlines()
                raise EagerOnly(f"sizes depend on the values of tensors, and {line}") from e
            if self._on_error == "raise" or (self._plain and isinstance(e, TraceError)):
                raise
            warn_of_fallback(self._recipe.name, e)
            return Failure(e, signature)


def _root_name(fn: Callable[..., Any]) -> str:
    return "" if inspect.ismethod(fn) else getattr(fn, "__name__", type(fn).__name__)


def find_captures(
    source: GuardSource,
    roots: Sequence[Root],
    followed: Codes | None,
    mentioned: Set[str] = frozenset(),
    *,
    plain: bool = False,
) -> Walk:
    """Walk from `roots`, the function first, to tensors and slots as they are now, and what a guard finds and compares.

    Args:
        source: what a guard does before.
        followed: the code to look into; None: all of the user's.
        mentioned: names known to be mentioned by that code.
        plain: look into nothing but the user's own code, and not much of that.

    Raises:
        EagerOnly: the function reads something that can be neither fetched nor compared, or is not plain.
    """
    fn = roots[0][1]
    while True:
        walk = Walk(mentioned, source.copy(), followed, fitted_function(fn), plain)
        if isinstance(function := getattr(fn, "__func__", fn), types.FunctionType):
            walk.require_plain(function)  # the first one is the best reason
        for path, root, name in roots:
            walk.visit(root, path, name, None)
        if walk.mentioned == mentioned:
            return walk
        mentioned = walk.mentioned

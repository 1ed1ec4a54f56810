"""What Inductor compiled, as data and files, and made again of these by another process, without compiling."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aotkit.backends.inductor_graphs.alignment import within_alignment
from aotkit.backends.inductor_graphs.called import called
from aotkit.backends.inductor_graphs.generated_code import Loaded, code_as_data
from aotkit.interfaces import Boxed


def data_of(compiled: Any) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """Of a `CompiledFxGraph`, what `load` takes; None if it is called in ways that are not known here."""
    if (found := code_as_data(compiled)) is None:
        return None
    data, kernels = found
    entry, alignment = within_alignment(compiled.current_callable)
    if entry != compiled.compiled_fn_runner.call:
        return None
    data["alignment"] = {name: sorted(numbers) for name, numbers in alignment.items()}
    return data, {name: path.read_bytes() for name, path in kernels.items()}


def load(data: Mapping[str, Any], files: Mapping[str, Path]) -> Boxed:
    """The compiled graph."""
    return called(Loaded(data, data["alignment"], files), are_fixed=True)

"""Which module of the user's model a graph node comes from."""

import re
from types import FrameType

from torch import nn
from torch.fx import Node

_CALL = nn.Module.__call__.__code__


class ModuleNames:
    """What to call the modules that run below a function.

    Args:
        root: the module whose `forward` is the function, if it is one; its own name is "".
    """

    def __init__(self, root: nn.Module | None) -> None:
        self._root = root
        self._inside: dict[int, dict[int, str]] = {}

    def stack(self, frame: FrameType | None, boundary: int) -> dict[str, tuple[str, str]]:
        """The modules whose calls surround `frame`, outermost first, as `torch.fx` keeps them: path -> (path, class).

        The class goes by its name, as in torch.export: graphs that are kept shall not keep modules.

        A module goes by its attributes: `layers.0.linear`. One that is not found inside the one that calls it goes by
        its class. Frames from the one with the identity `boundary` outwards do not count.
        """
        modules: list[nn.Module] = []
        while frame is not None and id(frame) != boundary:
            if frame.f_code is _CALL:
                modules.insert(0, frame.f_locals["self"])
            frame = frame.f_back
        stack: dict[str, tuple[str, str]] = {}
        parent, path = self._root, ""
        for module in modules:
            name = self._name(module, parent)
            path = ".".join(filter(None, [path, name]))
            parent = module
            stack[path] = path, type(module).__name__
        return stack

    def _name(self, module: nn.Module, parent: nn.Module | None) -> str:
        if parent is None:
            return type(module).__name__
        if id(parent) not in self._inside:
            self._inside[id(parent)] = {id(inner): name for name, inner in parent.named_modules()}
        return self._inside[id(parent)].get(id(module), type(module).__name__)


def module_stack(node: Node) -> list[tuple[str, str]]:
    """(path, name of the class) of the modules that `node` was traced in, outermost first, without one of path ""."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    # TorchDynamo writes L['fn'].__self__.layers.0 where the function is the module's own.
    named = (
        (re.sub(r"^[LG]\['\w+'\](\.__self__)?\.?", "", path), getattr(cls, "__name__", str(cls))) for path, cls in stack
    )
    return [(path, name) for path, name in named if path]


def module_path(node: Node) -> str:
    """The innermost module that `node` was traced from, `layers.0.linear`; "" if none is known, or the outermost."""
    stack = module_stack(node)
    return stack[-1][0] if stack else ""

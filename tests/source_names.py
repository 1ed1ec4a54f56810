"""What Python files import, and the dotted names that they use."""

import ast
import re


def imports(nodes, path):
    """(local name, full dotted name) of each import among `nodes`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.parent.parts[: len(path.parent.parts) + 1 - node.level] if node.level else ()
            module = ".".join([*package, *filter(None, [node.module])])
            yield from ((alias.asname or alias.name, f"{module}.{alias.name}") for alias in node.names)


def heads(imported):
    """What the local names that these imports bind stand for."""
    # `import torch.fx` binds the name `torch`; `import torch.fx as fx` binds `fx`, which stands for torch.fx.
    return {local.partition(".")[0]: local.partition(".")[0] if "." in local else full for local, full in imported}


def names_in(node, heads, *, whole=False):
    """Every dotted name below `node` that begins with an imported one, in full.

    Args:
        whole: `a.b` alone for `a.b`, without the `a` in it.
    """
    within = {n.value for n in ast.walk(node) if whole and isinstance(n, ast.Attribute)}
    kinds = ast.Attribute | ast.Name if whole else ast.Attribute
    chains = [ast.unparse(n) for n in ast.walk(node) if isinstance(n, kinds) and n not in within]
    parts = [chain.partition(".") for chain in chains if re.fullmatch(r"[\w.]+", chain)]
    return {f"{heads[head]}{dot}{rest}" for head, dot, rest in parts if head in heads}


def names_used(tree, path, root):
    """Every dotted name that leads into package `root`, in full, however it was imported."""
    imported = list(imports(ast.walk(tree), path))
    used = {full for _, full in imported} | names_in(tree, heads(imported))
    return sorted(name for name in used if inside(name, [root]))


def inside(name, packages):
    return any(name == p or name.startswith(p + ".") for p in packages)


def is_private(name):
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))

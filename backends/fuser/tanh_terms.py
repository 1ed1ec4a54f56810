"""`1 + tanh(x)` and `1 - tanh(x) ** 2` by the logistic function: one exponential, where `tanh` takes a polynomial, too.

So are the approximation of GELU and its gradient. With s = sigmoid(2x), they are 2s and 4s(1 - s).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from aotkit.backends.fuser.loops import Loops, Node, Result, rewritten
from aotkit.backends.fuser.values import below

Users = Mapping[Node, Sequence[Node]]


def by_sigmoid(loops: Loops, results: Sequence[Result]) -> tuple[list[Result], dict[Node, Node]]:
    """The results with neither, where nothing else needs the `tanh`, and what new nodes have been before."""
    users, stored = defaultdict[Node, list[Node]](list), {r.node for r in results}
    for n in below(r.node for r in results):
        for x in dict.fromkeys(n.args):
            users[x].append(n)
    terms: dict[Node, Node] = {}  # -> the operand of their tanh
    for tanh in [n for n in users if n.does("tanh") and n not in stored]:
        if found := _terms(tanh, users, stored):
            terms |= dict.fromkeys(found, tanh.args[0])
    done: dict[Node, Node] = {}

    def rule(n: Node, args: list[Node]) -> Node:
        done[n] = _new(loops, n, done[terms[n]]) if n in terms else loops.rebuilt(n, args)
        return done[n]

    return rewritten(results, rule) if terms else (list(results), {})


def _terms(tanh: Node, users: Users, stored: set[Node]) -> list[Node] | None:
    """All that a tanh is an operand of, if that is such a term or a square in one."""
    found = []
    for user in users[tanh]:
        if user.does("add") and any(_is_one(x) for x in user.args):
            found.append(user)
        elif user.does("mul") and user not in stored and all(x is tanh for x in user.args):
            if not all(n.does("sub") and _is_one(n.args[0]) for n in users[user]):
                return None
            found += users[user]
        else:
            return None
    return found


def _is_one(node: Node) -> bool:
    return node.kind == "constant" and node.data == 1


def _new(loops: Loops, term: Node, x: Node) -> Node:
    two = loops.constant(2.0, x.type)
    s = loops.operation("sigmoid", loops.operation("mul", x, two))
    if term.does("add"):
        return loops.operation("mul", s, two)
    rest = loops.operation("sub", loops.constant(1.0, x.type), s)
    return loops.operation("mul", loops.operation("mul", s, rest), loops.constant(4.0, x.type))

"""How a kernel is laid out: the order of its loops, the tile of a program, and how many programs there are."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from aotkit.backends.fuser import limits
from aotkit.backends.fuser.dependence import contiguous
from aotkit.backends.fuser.kernels import Kernel
from aotkit.backends.fuser.loops import Loops, Node
from aotkit.backends.fuser.pairs import paired
from aotkit.backends.fuser.values import below

# Schedules around the model's own choice, to be measured on request: factors of what that chose.
PREFERENCES: Mapping[str, Mapping[str, float]] = {
    "more warps": {"warps": 2},
    "fewer warps": {"warps": 0.5},
    "more rows": {"rows": 2},
    "fewer rows": {"rows": 0.5},
    "more rows and warps": {"rows": 2, "warps": 2},
    "wider": {"inner": 2},
    "narrower": {"inner": 0.5},
    "fewer stages": {"stages": 0.5},
}
DRAWS = "bitwise_right_shift"  # of random numbers, which take many registers


@dataclass(frozen=True)
class Schedule:
    """Sizes are in elements.

    Attributes:
        rows: axes of rows, the slowest first; those that a program adds up last.
        inner: axes within rows.
        row_block, inner_block: the tile; powers of two.
        whole: whether a tile holds whole rows; else a program walks each row in chunks.
        programs: how many programs walk the rows that are added up (1 if none are).
        grid: programs in all: rows, then shares of a row.
        warps: of 32 threads.
        stages: how many chunks of a row are on their way at a time.
    """

    rows: tuple[int, ...]
    inner: tuple[int, ...]
    row_block: int
    inner_block: int
    whole: bool
    programs: int
    grid: tuple[int, int]
    warps: int
    stages: int

    @property
    def heading(self) -> str:
        """As text."""
        text = f"tile {self.row_block} x {self.inner_block}, grid {self.grid[0]} x {self.grid[1]}, {self.warps} warps"
        return text + f", {self.stages} stages" * (self.stages > 1)


def scheduled(loops: Loops, kernel: Kernel, preference: str = "") -> Schedule:
    """The schedule of a kernel. It sets the size of the axis of parts.

    Args:
        preference: one of `PREFERENCES`, which is followed as far as it is legal; "": what the model chooses.
    """
    own = _chosen(loops, kernel)
    return _around(loops, kernel, own, PREFERENCES[preference]) if preference else own


def _around(loops: Loops, kernel: Kernel, own: Schedule, factors: Mapping[str, float]) -> Schedule:
    """Another tile. Rows that are added up stay whole, by as many programs; chunks of a shared row divide a share."""
    count, length = loops.size(kernel.summed or own.rows), loops.size(own.inner)
    row_block = min(_times(own.row_block, factors.get("rows")), power_of_two(count))
    widest = power_of_two(length) if kernel.shares == 1 else _longest_chunk(kernel)
    inner_block = min(_times(own.inner_block, factors.get("inner")), widest)
    tile = row_block * inner_block
    is_narrow = inner_block < min(own.inner_block, limits.NARROWEST)
    if is_narrow or tile > max(own.row_block * own.inner_block, limits.LONGEST_WHOLE_ROW):
        return own
    if kernel.summed and inner_block != own.inner_block:
        return own
    blocks, grid = -(-loops.size(own.rows) // row_block), own.grid
    if kernel.inner is None:
        grid = blocks * -(-length // inner_block), 1
    elif not kernel.summed:
        grid = blocks, kernel.shares
    return replace(
        own,
        row_block=row_block,
        inner_block=inner_block,
        whole=kernel.inner is not None and kernel.shares == 1 and inner_block >= length,
        grid=grid,
        warps=max(1, min(limits.MOST_WARPS, tile // 32, _times(own.warps, factors.get("warps")))),
        stages=_times(own.stages, factors.get("stages")) if row_block == 1 or not kernel.summed else 1,
    )


def _times(number: int, factor: float | None) -> int:
    return max(1, int(number * (factor or 1)))


def _chosen(loops: Loops, kernel: Kernel) -> Schedule:
    order, nearest = layout(loops, kernel)
    if kernel.inner is None:
        if len(nearest) > 1:
            if (found := _few_neighbours(loops, kernel)) is None:
                return _crossing(loops, order, nearest)
            order = found
        return _flat(loops, kernel, order)
    inner = tuple(a for a in order if a in kernel.inner)
    kept = [a for a in order if a in kernel.rows - kernel.summed]
    rows = (*kept, *(a for a in order if a in kernel.summed))
    if kernel.summed:
        schedule = _summed(loops, kernel, rows, inner)
        assert kernel.partial_axis is not None
        loops.sizes[kernel.partial_axis] = schedule.programs
        return schedule
    count, length = loops.size(rows), loops.size(inner)
    if rows and not nearest <= kernel.inner:
        row_block, inner_block, warps = _column_tile(loops, kernel, rows, inner)
        waits = _waits_for_columns(loops, kernel, rows[-1], row_block)
    else:
        row_block, inner_block, elements = _row_tile(loops, kernel, count, inner)
        warps, waits = _warps(row_block * inner_block, elements), _waits(kernel)
    whole = inner_block >= length and kernel.shares == 1
    grid, tile = (-(-count // row_block), kernel.shares), row_block * inner_block
    stages = _stages(kernel, tile, limits.CHUNKS_UNDER_WAY) if waits and not whole else 1
    return Schedule(rows, inner, row_block, inner_block, whole, 1, grid, warps, stages)


def _column_tile(loops: Loops, kernel: Kernel, rows: tuple[int, ...], inner: tuple[int, ...]) -> tuple[int, int, int]:
    """Columns and elements of a column in a tile, and warps."""
    count, length, wide = loops.size(rows), loops.size(inner), _wide(kernel)
    row_block = _block(loops.sizes[rows[-1]], limits.SIDE)
    enough = limits.MULTIPROCESSORS if kernel.shares > 1 else 2 * limits.MULTIPROCESSORS
    while row_block > limits.NEIGHBOURS and count // row_block * kernel.shares < enough:
        row_block //= 2
    inner_block = _column_chunk(loops, kernel, inner, row_block)
    # Within a thread, a sum costs least; the fewer programs there are, the more warps of each read.
    programs = -(-count // row_block) * kernel.shares
    elements = limits.MANY if programs > limits.PROGRAMS else limits.SOME
    if programs <= 2 * limits.MULTIPROCESSORS or (not wide and inner_block < length):
        elements = limits.FEWEST if programs <= limits.MULTIPROCESSORS else limits.FEW
    warps = _warps(row_block * inner_block, elements)
    if length <= 2 * inner_block and kernel.shares == 1 and len(wide) <= 2:  # there are registers for it
        inner_block = power_of_two(length)
    return row_block, inner_block, warps


def _longest_chunk(kernel: Kernel) -> int:
    """Elements, at most, of a tile of a shared row, so that no tile is of two shares."""
    return math.gcd(limits.SHARED_CHUNK, kernel.share)


def _column_chunk(loops: Loops, kernel: Kernel, inner: tuple[int, ...], row_block: int) -> int:
    """Elements of a column in a tile; where they divide the innermost axis, what varies along others is one number."""
    most = _longest_chunk(kernel) if kernel.shares > 1 else limits.SHARED_CHUNK
    block = _block(loops.size(inner), min(most, max(16, limits.TILE // row_block)))
    dividing = math.gcd(block, loops.sizes[inner[-1]]) if len(inner) > 1 else block
    return dividing if dividing >= limits.NARROWEST else block


def _flat(loops: Loops, kernel: Kernel, order: list[int]) -> Schedule:
    """All elements one after the other; in tiles of rows, of which what is the same for a row is computed once."""
    size, wide = loops.size(order), _wide(kernel)
    block = _block(size, limits.FLAT if wide else 2 * limits.FLAT)
    while block > 128 and -(-size // block) < limits.MULTIPROCESSORS:
        block //= 2
    rows, inner = tuple(order[:-1]), tuple(order[-1:])
    inner_block = _part(loops.size(inner), block) if rows else 0
    if not inner_block:
        rows, inner, inner_block = (), tuple(order), block
    row_block = block // inner_block
    grid = -(-loops.size(rows) // row_block) * -(-loops.size(inner) // inner_block)
    is_large = grid >= 2 * limits.PROGRAMS and inner_block >= limits.FLAT // 4
    is_narrow = all(n.type.itemsize <= 2 for n in wide)  # so a thread reads 32 bytes of each
    warps = min(4, _warps(block, limits.SOME if is_large and is_narrow else limits.FEW))
    if _is_apart(wide):
        warps = _warps(block, limits.FEWEST // 2)
    return Schedule(rows, inner, row_block, inner_block, False, 1, (grid, 1), warps, 1)


def _is_apart(wide: list[Node]) -> bool:
    """Whether no element that it reads is next to another, or the next but one: two are read as one.

    The more threads, the more are under way.
    """
    return bool(wide) and all(n.data[-2] and min(abs(s) for _, s in n.data[-2]) > 2 for n in wide)


def _part(length: int, most: int) -> int:
    """Elements of a row in a tile, of which few are beyond the end of the row; 0: rows do not come in such parts."""
    block = min(power_of_two(length), most)
    while block >= limits.WIDE and 8 * -(-length // block) * block > 9 * length:
        block //= 2
    return block if block >= limits.WIDE else 0


def _few_neighbours(loops: Loops, kernel: Kernel) -> list[int] | None:
    """The axes as a tensor has them, in which parts take turns that are rows of others, as in a pixel shuffle.

    In its order, what the 32 threads of a warp read or write of others are as many pieces, which should not be short.
    """
    forms = [(s.node.type.itemsize, s.axes) for s in kernel.stores]
    forms += [(n.type.itemsize, n.data[-2]) for n in _wide(kernel)]
    for size, axes in forms:
        turns = loops.sizes[contiguous(axes)] if axes else 0
        if {a for a, _ in axes} == kernel.domain and 1 < turns <= 32 * size // limits.SECTOR:
            return [a for a, _ in sorted(axes, key=lambda term: -abs(term[1]))]
    return None


def _crossing(loops: Loops, order: list[int], nearest: set[int]) -> Schedule:
    """Squares, for tensors of which one has neighbours where the other has rows; several at a time of short ones."""
    column, row = sorted(nearest, key=order.index)[-2:]
    rows = (*(a for a in order if a not in (column, row)), column)
    row_block, inner_block = _block(loops.sizes[column], limits.SIDE), _block(loops.sizes[row], limits.SIDE)
    chunks = -(-loops.sizes[row] // inner_block)
    while row_block * inner_block < limits.TILE and loops.size(rows) // (2 * row_block) * chunks >= limits.PROGRAMS:
        row_block *= 2
    blocks = -(-loops.size(rows) // row_block) * chunks
    warps = min(4, _warps(row_block * inner_block, limits.FEW))
    return Schedule(rows, (row,), row_block, inner_block, False, 1, (blocks, 1), warps, 1)


def _row_tile(loops: Loops, kernel: Kernel, count: int, inner: tuple[int, ...]) -> tuple[int, int, int]:
    """Rows and elements of a row in a tile, and elements of a thread."""
    length = loops.size(inner)
    if kernel.shares > 1:
        is_few = (count == 1 or _waits(kernel)) and not _is_apart(_wide(kernel))
        return 1, _longest_chunk(kernel), limits.FEW if is_few else limits.FEWEST
    if power_of_two(length) > limits.LONGEST_WHOLE_ROW:
        half = limits.CHUNK // 2
        # Where chunks divide the axis of neighbours, what varies along others alone is one number for a chunk.
        is_half = "exponentials" in _pairs(kernel) or loops.sizes[inner[-1]] == half
        return 1, half if is_half else limits.CHUNK, limits.SOME
    inner_block = power_of_two(length)
    row_block = _block(count, max(1, limits.TILE // inner_block))
    enough = 2 * limits.MULTIPROCESSORS if kernel.summed else limits.PROGRAMS
    while row_block > 1 and count // row_block < enough:
        row_block //= 2
    if length % limits.WORD and inner_block <= limits.SIDE and count // row_block >= 2 * limits.PROGRAMS:
        row_block = max(1, row_block // 4)  # each element is read alone, and a warp needs no other for its sums
    numbers = [n for n in _wide(kernel) if n.type.itemsize > 1]
    draws = any(n.does(DRAWS) for n in below(kernel.anchors))
    is_light = len(numbers) == 1 and not (draws and numbers[0].type.itemsize > 2)
    is_many = inner_block >= limits.TILE // 4 and count // row_block >= 2 * limits.PROGRAMS
    return row_block, inner_block, limits.MANY if is_light and is_many else limits.SOME


def _summed(loops: Loops, kernel: Kernel, rows: tuple[int, ...], inner: tuple[int, ...]) -> Schedule:
    """Whole rows, of which each program adds up some."""
    count, length, summed = loops.size(rows), loops.size(inner), kernel.summed
    row_block, inner_block, elements = _row_tile(loops, kernel, count, inner)
    warps = _warps(row_block * inner_block, elements if row_block == 1 else limits.MANY)
    kept = loops.size(a for a in rows if a not in summed)
    is_copied = row_block == 1 and length % limits.WORD == 0
    stages = _stages(kernel, inner_block, limits.UNDER_WAY) if is_copied else 1
    resident = limits.RESIDENT if stages > 1 else 2 * limits.RESIDENT
    most = max(1, limits.MULTIPROCESSORS * max(1, resident // warps) // kept)
    if row_block > 1 and loops.size(summed) // row_block > most:  # many, in which no warp waits for another
        row_block, warps = row_block // 2, max(1, warps // 2)
    programs = min(-(-loops.size(summed) // row_block), most)
    return Schedule(rows, inner, row_block, inner_block, True, programs, (kept * programs, 1), warps, stages)


def _pairs(kernel: Kernel) -> set[str]:
    """The kinds of reductions that are found in one walk together with another one."""
    return {p.kind for p in paired([*kernel.reductions, *(p.node for p in kernel.partials)]).values()}


def _waits(kernel: Kernel) -> bool:
    """Whether a walk over chunks of a row waits for memory: for the squares of a long one.

    Where there are exponentials, that takes longer (a cross entropy, H200: 455 us, and 669 with stages).
    """
    return "squares" in _pairs(kernel)


def _waits_for_columns(loops: Loops, kernel: Kernel, row: int, row_block: int) -> bool:
    """Whether a walk over chunks of columns does: wide ones, or where there is more to do than to add up.

    Copies on their way are of 4 bytes, at least. Half a number for a position of all columns is none of them, so that
    each chunk would wait for it (a mean of what a mask leaves, in float16, H200: 127 us with stages, and 55).
    """
    narrowest = limits.SIDE // 4 if kernel.shares > 1 else limits.SIDE // 2
    inner = kernel.inner or frozenset()
    others = [n for n in below(kernel.anchors) if n.kind == "load" and n.axes != kernel.domain]
    others = [n for n in others if n.axes & inner and n.axes & kernel.rows]  # what is the same for all rows is near
    is_copied = loops.sizes[row] % limits.WORD == 0 and all(n.type.itemsize >= 4 for n in others)
    return is_copied and (row_block >= narrowest or bool(_pairs(kernel)))


def _stages(kernel: Kernel, tile: int, most: int) -> int:
    """How many rows or chunks can be on their way: all but one are in shared memory. Two are slower than one."""
    nbytes = tile * sum(n.type.itemsize for n in _wide(kernel))
    stages = min(limits.STAGES, 1 + most // nbytes) if nbytes else 1
    return stages if stages > 2 else 1


def _wide(kernel: Kernel) -> list[Node]:
    """What it reads of whole tensors."""
    return [n for n in below(kernel.anchors) if n.kind == "load" and n.axes == kernel.domain]


def _warps(tile: int, elements: int) -> int:
    return max(1, min(limits.MOST_WARPS, tile // (32 * elements)))


def layout(loops: Loops, kernel: Kernel) -> tuple[list[int], set[int]]:
    """The axes, the slowest first, and those along which whole tensors have neighbours next to each other."""
    step = dict.fromkeys(sorted(kernel.domain), 0)
    forms = [(s.node.type.itemsize, s.axes) for s in kernel.stores]
    loads = kernel.loads.union(n for n in below(kernel.anchors) if n.kind == "load")
    forms += [(n.type.itemsize, n.data[-2]) for n in loads]
    most = max((loops.size(a for a, _ in axes) for _, axes in forms), default=0)
    inner = kernel.inner or frozenset()
    are_parts = bool(inner) and most < loops.size(kernel.domain)  # so each is read many times
    nearest = set()
    for size, axes in forms:
        is_walked = are_parts and any(a in inner for a, _ in axes)
        if axes and (is_walked or loops.size(a for a, _ in axes) == most):
            nearest.add(contiguous(axes))
            for axis, stride in axes:
                if axis in step:
                    step[axis] += size * abs(stride)
    return sorted(step, key=lambda a: -step[a]), nearest & kernel.domain


def power_of_two(n: int) -> int:
    """The least power of two that is not below."""
    return 1 << max(0, n - 1).bit_length()


def _block(size: int, most: int) -> int:
    return min(power_of_two(size), most)

"""Every path of an entry, executed abstractly; paths that a proof already covers are cut.

Exploration goes depth first. Where paths join, the state is kept; when all that follows has been explored, so is what
the proof of it needed (`needs`): places read, and numbers whose range decided something. A later path that comes to
the join with a state that agrees on the needs is proven by the same proof, costs no more, and ends there. Registers
that nobody reads and numbers that only flow into maps do not tell states apart, so that a hundred branches in a row
cost a hundred steps and not 2^100 paths.

Where states come to a join that differ in numbers that matter, and there are many of them, they are blended: what is
then known holds for several, and soon one covers the rest. In loops nothing is blended, for their end hangs on numbers.

Loops are explored round by round, since a state that still is being explored proves nothing: what comes out is the
exact worst case. A loop that comes back to a state that it had, or a path longer than MAX_COST, is rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..isa import R0, Kind
from ..program import Entry, Program
from ..verdict import Rejected
from .arithmetic import compute, load_wide, swap_bytes
from .calls import call_helper, call_local, leave_local
from .cost import countable
from .jumps import jump
from .memory import atomic, load, store
from .needs import NONE, Needs, Step, before
from .state import State, blend, covers
from .structure import Code, Loop, Op
from .values import text
from .walk import Facts, Walk

MAX_COST = 1 << 15
"""Instructions that one event may cost."""
MAX_STEPS = 1 << 17
"""Instructions that are looked at and states that are compared, over all paths."""
MAX_WAITING = 1 << 12
"""Sides of branches that wait to be looked at."""
TRIED = 8
"""Proofs at one join that a state is compared with, latest first."""
CROWDED, OVERCROWDED = 8, 512
"""Proofs at one join outside loops after which states are blended with the latest, and after which differences go."""
ADVISE_MAX = 7

_SIMPLE: dict[Kind, Callable[[Walk, Op], Step]] = {
    Kind.ALU: compute,
    Kind.SWAP: swap_bytes,
    Kind.WIDE: load_wide,
    Kind.LOAD: load,
    Kind.LOADSX: load,
    Kind.STORE: store,
    Kind.ATOMIC: atomic,
}


class Node:
    """A stretch of a path, up to where it ends, forks or joins. Done when all that follows it is.

    at: the slot of a join where it begins, with the state there; None elsewhere. far: cost from the entry to here.
    spent: of the stretch; rest: of the dearest that follows. needs: known when done.
    """

    __slots__ = ("at", "cost", "far", "needs", "parent", "pending", "rest", "spent", "state", "trail")

    def __init__(self, parent: Node | None, far: int, at: int = -1, state: State | None = None) -> None:
        self.parent, self.far, self.at, self.state = parent, far, at, state
        self.trail: list[Step] = []
        self.pending = 1
        self.spent = self.rest = self.cost = 0
        self.needs = NONE


class Mark(NamedTuple):
    """A state at the begin of a loop, to find out whether the loop comes back to it (Brent's way of finding cycles).

    left: visits until a later state takes its place; power: how many it was kept for.
    """

    state: State
    left: int
    power: int


class Explorer:
    """Explores one entry at a time; what it finds out of all of them goes to `facts`. steps: instructions looked at."""

    def __init__(self, program: Program, code: Code, facts: Facts) -> None:
        self.program, self.code, self.facts = program, code, facts
        self.walk = Walk(program, code, facts)
        self.steps = 0
        # rounds are told apart only where `cost` makes use of them
        self.loops: list[Loop] = code.loops if countable(code) else []
        self.heads = {loop.first for loop in code.loops}
        self.index = {loop: i for i, loop in enumerate(self.loops)}
        self.around: dict[int, list[int]] = {}
        self.in_loop = [any(x.first <= pc <= x.last for x in code.loops) for pc in range(len(code.ops))]

    def run(self, entry: Entry) -> tuple[int, set[int], list[int]]:
        """Worst-case cost of an event, slots that some path executes, and rounds by loop. Raises Rejected."""
        self.reachable: set[int] = set()
        self.rounds = [0] * len(self.loops)
        self.proven: dict[int, list[Node]] = {}
        self.facts.depth.setdefault(entry.pc, 0)
        root = Node(None, 0)
        self.todo: list[tuple[Node, State, int, dict[int, Mark]]] = []
        self.todo.append((root, State.at_entry(entry.pc, len(self.loops)), entry.pc, {}))
        while self.todo:
            self._follow(*self.todo.pop())
        self.facts.reachable |= self.reachable
        return root.cost, self.reachable, self.rounds

    def _follow(self, node: Node, state: State, pc: int, marks: dict[int, Mark]) -> None:
        """Go along one path until it ends; alternatives are left in `todo`."""
        walk, ops, joins = self.walk, self.code.ops, self.code.joins
        walk.go(state)
        while True:
            walk.pc = pc
            if joins[pc]:
                known = self._known(pc, state)
                if known:
                    if node.far + node.spent + known.cost > MAX_COST:
                        raise self._too_long(f"one event can cost more than {MAX_COST} instructions")
                    return self._done(node, known.needs, known.cost)
                if pc in self.heads:
                    self._check_progress(pc, state, marks)
                node = Node(node, node.far + node.spent, pc, state.copy())
            op = ops[pc]
            assert op is not None
            self.reachable.add(pc)
            self._spend(node, op)
            simple = _SIMPLE.get(op.kind)
            if simple:
                node.trail.append(simple(walk, op))
                pc = op.next
            elif op.kind is Kind.JUMP:
                step, sides = jump(walk, op)
                node.trail.append(step)
                if not sides:
                    return self._done(node, NONE, 0)
                if len(sides) == 2:
                    node.pending = 2
                    far = node.far + node.spent
                    other = sides[1][0]
                    self.todo.append((Node(node, far), other, self._jump(other, pc, op.to), dict(marks)))
                    if len(self.todo) > MAX_WAITING:
                        raise self._too_long(f"more than {MAX_WAITING} branches are open at once")
                    node = Node(node, far)
                state, taken = sides[0]
                walk.go(state)
                pc = self._jump(state, pc, op.to) if taken else op.next
            elif op.kind is Kind.GOTO:
                pc = self._jump(state, pc, op.to)
            elif op.kind is Kind.EXIT:
                if len(state.frames) == 1:
                    node.trail.append(self._exit())
                    return self._done(node, NONE, 0)
                step, pc = leave_local(walk)
                node.trail.append(step)
            elif op.register:
                node.trail.append(call_local(walk, op))
                pc = op.to
            else:
                node.trail.append(call_helper(walk, op))
                pc = op.next

    # Where paths end

    def _done(self, node: Node | None, needs: Needs, cost: int) -> None:
        """What follows a stretch is explored: `needs` and `cost` of it. Closes all that has nothing left to explore."""
        node = self._end(node, needs, cost)
        while node:
            node.needs = before(node.trail, node.needs)
            node.cost = node.spent + node.rest
            node.trail = []
            if node.state:
                self.proven.setdefault(node.at, []).append(node)
            node = self._end(node.parent, node.needs, node.cost)

    def _end(self, node: Node | None, needs: Needs, cost: int) -> Node | None:
        """One of the ends of a stretch is explored. Returns it if that was the last."""
        if node is None:
            return None
        node.needs = Needs(node.needs.reads | needs.reads, node.needs.exact | needs.exact)
        node.rest = max(node.rest, cost)
        node.pending -= 1
        return None if node.pending else node

    def _known(self, pc: int, state: State) -> Node | None:
        """A proof at this join that covers the state. The state may come to know less."""
        proven = self.proven.get(pc)
        if not proven:
            return None
        found = self._covering(pc, proven, state)
        if found or len(proven) < CROWDED or self.in_loop[pc] or any(self.in_loop[f.call] for f in state.frames[1:]):
            return found
        latest = proven[-1]
        assert latest.state is not None
        if [f.call for f in latest.state.frames] != [f.call for f in state.frames]:
            return None
        blend(state, latest.state, latest.needs.exact, forget=len(proven) >= OVERCROWDED)
        return self._covering(pc, proven[-1:], state)

    def _covering(self, pc: int, proven: list[Node], state: State) -> Node | None:
        for node in proven[: -TRIED - 1 : -1]:
            assert node.state is not None
            self.steps += 1
            if self._rounds_covered(pc, node.state, state) and covers(node.state, state, node.needs):
                return node
        return None

    def _rounds_covered(self, pc: int, old: State, new: State) -> bool:
        around = self.around.get(pc)
        if around is None:
            around = self.around[pc] = [i for i, x in enumerate(self.loops) if x.first <= pc <= x.last]
        return all(new.rounds[i] <= old.rounds[i] for i in around)

    def _exit(self) -> Step:
        walk = self.walk
        number = walk.number(R0, "is returned")
        if self.program.kind == "observe":
            return 0, walk.place(R0), 0, 0, 0
        if number.umax > ADVISE_MAX:
            raise walk.rejected(f"an advise program returns {text(number)}; 0..{ADVISE_MAX} are allowed", R0)
        return 0, walk.place(R0), 0, 0, walk.place(R0)

    # Bounds

    def _spend(self, node: Node, op: Op) -> None:
        self.steps += 1
        node.spent += op.cost
        if node.far + node.spent > MAX_COST:
            raise self._too_long(f"one event can cost more than {MAX_COST} instructions")
        if self.steps > MAX_STEPS:
            raise self._too_long(f"more than {MAX_STEPS} instructions and states were looked at")

    def _too_long(self, why: str) -> Rejected:
        """To be raised."""
        inside = [x for x in self.code.loops if x.first <= self.walk.pc <= x.last]
        if not inside and not self.code.loops:
            return self.walk.rejected(f"too long or too many paths: {why}", todo="make it smaller")
        loop = max(inside or self.code.loops, key=lambda x: x.first)
        self.walk.pc = loop.first
        todo = "count its rounds with a number that a constant bounds; where one does, make them fewer or shorter"
        return self.walk.rejected(f"loop not shown to end: {why}", todo=todo)

    def _check_progress(self, pc: int, state: State, marks: dict[int, Mark]) -> None:
        """A loop that comes back to a state it was in is the same for ever."""
        mark = marks.get(pc)
        if mark is None:
            marks[pc] = Mark(state.copy(), 1, 1)
            return
        if covers(mark.state, state, None) and covers(state, mark.state, None):
            raise self.walk.rejected(
                "loop not shown to end: it comes back with nothing changed that is known",
                todo="count its rounds with a number that a constant bounds",
            )
        marks[pc] = mark._replace(left=mark.left - 1)
        if mark.left == 1:
            marks[pc] = Mark(state.copy(), 2 * mark.power, 2 * mark.power)

    def _jump(self, state: State, pc: int, to: int) -> int:
        """Count a jump back as a round of its loop; the loops inside begin anew."""
        if to <= pc and self.loops:
            this = Loop(to, pc)
            at = self.index[this]
            rounds = [0 if to <= x.first and x.last <= pc else n for x, n in zip(self.loops, state.rounds, strict=True)]
            rounds[at] = state.rounds[at] + 1
            state.rounds = tuple(rounds)
            self.rounds[at] = max(self.rounds[at], rounds[at])
        return to

"""A batch through a program, in LLVM assembly: hooks, budgets, counters and the emit allowance as `execution` says.

    i64 @run(ptr env, ptr columns, i64 begin, i64 end, ptr by, i32 bit)

runs rows from `begin` on and returns `end`, or the first row that it could not begin because its worker is not ready
(see native_layout) or is none of this execution's: the caller makes it ready and goes on there. env: words of
native_layout.Env; columns: addresses for native_context.
"""

from __future__ import annotations

from ...store.errors import Refused
from ...store.tables import EVENT_ROW
from .execution import COUNTS, HOOK_SLOTS, Count
from .llvm_text import Text
from .lowering import Lowering
from .lowering_arithmetic import DECLARATIONS as SWAPS
from .lowering_target import Code
from .native_context import Places
from .native_helpers import DECLARATIONS, helpers
from .native_host import Host
from .native_layout import Env
from .program import PICK
from .verdict import Verdict


def module(verdict: Verdict, workers: int, places: Places) -> str:
    """The whole program with its driver, for one kind of batch. Raises CannotLower."""
    host = Host(verdict.program, places)
    lowering = Lowering(Code.of(verdict), host)
    driver = _driver(verdict, lowering, host, workers)
    return "\n".join(
        (
            DECLARATIONS + SWAPS,
            host.definitions(),
            helpers(lowering.helpers, verdict.program.maps),
            lowering.definitions(),
            driver,
        )
    )


def _driver(verdict: Verdict, lowering: Lowering, host: Host, workers: int) -> str:
    hooks = {h: e.pc for e in verdict.program.entries for h in e.hooks if h != PICK}
    if not hooks:
        raise Refused(lowering.code.what, "it is attached to no hook", "give an entry a hook")
    text = Text()
    _begin(text, host)
    text.do(f"switch i8 %hook, label %next [ {' '.join(f'i8 {h}, label %hook{h}' for h in hooks)} ]")
    for h in hooks:
        text.label(f"hook{h}")
        text.do("br label %gate")
    _gate(text, {h: verdict.cost[h] for h in hooks}, workers, host)
    text.label("go")
    text.do("store i8 0, ptr %emit")
    text.do(f"switch i8 %hook, label %next [ {' '.join(f'i8 {h}, label %entry{pc}' for h, pc in hooks.items())} ]")
    # A program never sees its context's address; it must only be none that a comparison with 0 takes for null.
    arguments = f"i64 8, i64 0, i64 0, i64 0, i64 0, {host.parameters}"
    for pc in sorted(set(hooks.values())):
        text.label(f"entry{pc}")
        text.let(f"call i64 {lowering.call(pc)}({arguments})")
        text.do("br label %ran")
    _end(text)
    return f"define i64 @run(ptr %env, ptr %columns, i64 %begin, i64 %end, ptr %by, i32 %bit) {{\n{text}\n}}\n"


def _begin(text: Text, host: Host) -> None:
    text.label("entry")
    text.do("%emit = alloca i8")
    for word in Env:
        kind = "i64" if word in (Env.INSTRUCTIONS, Env.ROWS) else "ptr"
        at = text.let(f"getelementptr i8, ptr %env, i64 {8 * word}")
        text.do(f"%{word.name.lower()} = load {kind}, ptr {at}")
    for i in range(host.bases):
        at = text.let(f"getelementptr i8, ptr %columns, i64 {8 * i}")
        text.do(f"%base{i} = load ptr, ptr {at}")
    text.do("br label %loop")
    text.label("loop")
    text.do("%row = phi i64 [ %begin, %entry ], [ %row.next, %next ]")
    text.do("%more = icmp ult i64 %row, %end")
    text.do("br i1 %more, label %look, label %out")
    text.label("out")
    text.do("ret i64 %row")
    text.label("next")
    text.do("%row.next = add i64 %row, 1")
    text.do("br label %loop")
    text.label("look")
    text.do(f"%hook = add i8 {host.column(text, EVENT_ROW['hook'])}, 0")


def _gate(text: Text, cost: dict[int, int], workers: int, host: Host) -> None:
    """Is the worker ready, and what is left of its budget?"""
    text.label("gate")
    text.do(f"%cost = phi i64 {', '.join(f'[ {c}, %hook{h} ]' for h, c in cost.items())}")
    text.do(f"%worker = zext i16 {host.column(text, EVENT_ROW['worker'])} to i64")
    text.do(f"%known = icmp ult i64 %worker, {workers}")
    text.do("br i1 %known, label %known.yes, label %out")
    text.label("known.yes")
    flag = text.let("getelementptr i8, ptr %ready, i64 %worker")
    text.do(f"%is.ready = icmp ne i8 {text.let(f'load i8, ptr {flag}')}, 0")
    text.do("br i1 %is.ready, label %ready.yes, label %out")
    text.label("ready.yes")
    first = text.let(f"mul i64 %worker, {8 * HOOK_SLOTS * COUNTS}")
    slot = text.let(f"mul i64 {text.let('zext i8 %hook to i64')}, {8 * COUNTS}")
    at = text.let(f"add i64 {first}, {slot}")
    text.do(f"%counts = getelementptr i8, ptr %counters, i64 {at}")
    text.do("%spent.at = getelementptr i64, ptr %spent, i64 %worker")
    text.do("%spent.old = load i64, ptr %spent.at")
    text.do("%spent.new = add i64 %spent.old, %cost")
    text.do("%over = icmp ugt i64 %spent.new, %instructions")
    text.do("br i1 %over, label %throttle, label %pay")
    text.label("throttle")
    _count(text, Count.THROTTLED)
    text.do("br label %next")
    text.label("pay")
    text.do("store i64 %spent.new, ptr %spent.at")
    _count(text, Count.OBSERVED)
    text.do("br label %go")


def _end(text: Text) -> None:
    """What became of the row: emitted, and within the allowance?"""
    text.label("ran")
    text.do(f"%asked = icmp ne i8 {text.let('load i8, ptr %emit')}, 0")
    text.do("br i1 %asked, label %emitting, label %next")
    text.label("emitting")
    _count(text, Count.EMITTED)
    text.do("%given.at = getelementptr i64, ptr %emitted, i64 %worker")
    text.do("%given = load i64, ptr %given.at")
    text.do("%may = icmp ult i64 %given, %rows")
    text.do("br i1 %may, label %write, label %withhold")
    text.label("write")
    text.do(f"store i64 {text.let('add i64 %given, 1')}, ptr %given.at")
    text.do("%by.at = getelementptr i32, ptr %by, i64 %row")
    text.do(f"%by.new = or i32 {text.let('load i32, ptr %by.at')}, %bit")
    text.do("store i32 %by.new, ptr %by.at")
    text.do("br label %next")
    text.label("withhold")
    _count(text, Count.EMIT_THROTTLED)
    text.do("br label %next")


def _count(text: Text, count: Count) -> None:
    at = text.let(f"getelementptr i8, ptr %counts, i64 {8 * count}")
    more = text.let(f"add i64 {text.let(f'load i64, ptr {at}')}, 1")
    text.do(f"store i64 {more}, ptr {at}")

"""Clauses that no event runs: begin, end and interval are the host's, for printing what was exported."""

from __future__ import annotations

from . import formats, syntax
from .errors import Problem, did_you_mean
from .expressions import Scope
from .map_uses import MapUse
from .query import Clear, HostClause, HostStatement, Print, Printf
from .statements import format_of

HOST_HEADS = ("begin", "end", "interval")
MIN_PERIOD_NS = 1_000_000
_SCALAR = ("count", "sum", "min", "max", "avg")
_DONE_HERE = ("print", "printf", "clear")


def host_clauses(query: syntax.Query, scope: Scope) -> tuple[HostClause, ...]:
    """The host's clauses, and an `end` that prints every map that nothing prints, nor reads. Raises Problem."""
    out = []
    for item in query.items:
        if isinstance(item, syntax.Clause) and any(h.name in HOST_HEADS for h in item.heads):
            out.append(_clause(item, scope))
    said = [s for c in out for s in c.statements]
    printed = {s.map for s in said if isinstance(s, Print)} | {a for s in said if isinstance(s, Printf) for a in s.args}
    rest = tuple(
        Print(u.name) for u in scope.maps.uses.values() if not (u.name in printed or u.what == "row" or u.read)
    )
    return (*out, HostClause("end", 0, rest)) if rest else tuple(out)


def _clause(clause: syntax.Clause, scope: Scope) -> HostClause:
    head = clause.heads[0]
    if len(clause.heads) > 1:
        odd = next(h for h in clause.heads if h.name in HOST_HEADS)
        raise Problem(odd.at, f"{odd.name} stands alone before its block", "write a clause for each")
    if clause.predicate:
        raise Problem(clause.predicate.at, f"{head.name} has no predicate: there is no event", "leave it out")
    if (head.period is None) != (head.name != "interval"):
        raise Problem(head.at, "interval has a period, and nothing else has", "as in: interval 1s { … }")
    if head.period is not None and head.period < MIN_PERIOD_NS:
        raise Problem(head.at, f"an interval of {head.period} ns is too short", "it is at least 1ms")
    statements = tuple(_statement(s, scope, head.name) for s in clause.block.statements)
    return HostClause(head.name, head.period or 0, statements)


def _statement(s: syntax.Statement, scope: Scope, head: str) -> HostStatement:
    if not isinstance(s, syntax.Action) or s.call.name not in _DONE_HERE or s.limit is not None:
        todo = "print(), printf() and clear() can; what events do stands in a clause of a hook"
        if isinstance(s, syntax.Action):
            todo = did_you_mean(s.call.name, _DONE_HERE, todo)
        raise Problem(s.at, f"the host cannot do this in {head}", todo)
    call = s.call
    if call.name == "printf":
        text, args = format_of(call)
        values = tuple(_argument(a, scope) for a in args)
        return Printf(formats.pieces(text.value, len(args), text.at), values)
    if len(call.args) == 1 and isinstance(call.args[0], syntax.MapRef):
        use = _map(call.args[0], scope)
        if call.name == "clear":
            if use.what == "state":
                raise Problem(
                    call.at, f"@{use.name} is state, which lives with the workers", "delete(@m[key]) at an event"
                )
            return Clear(use.name)
        return Print(use.name)
    match call.name, call.args:
        case "print", (syntax.Call(name="top", args=(syntax.MapRef() as ref, n)),):
            top = scope.constant(n, "n of top(@m, n)")
            use = _map(ref, scope)
            if use.what in ("hist", "lhist", "stats"):
                raise Problem(ref.at, f"@{use.name} holds {use.what}, and top() wants one number for each key")
            if top < 1:
                raise Problem(n.at, f"the top {top} is nothing", "n is at least 1")
            return Print(use.name, top)
    shape = "print(@m) or print(top(@m, n))" if call.name == "print" else "clear(@m)"
    raise Problem(call.at, f"{call.name} takes a map", f"write {shape}")


def _map(ref: syntax.MapRef, scope: Scope) -> MapUse:
    """A map as a whole."""
    use = scope.maps.uses.get(ref.name)
    if use is None:
        known = [f"@{n}" for n in scope.maps.uses]
        raise Problem(ref.at, f"there is no map @{ref.name}", did_you_mean(f"@{ref.name}", known))
    if ref.keys:
        raise Problem(ref.keys[0].at, "the host takes whole maps", f"write @{ref.name} without keys")
    return use


def _argument(e: syntax.Expr, scope: Scope) -> int | str:
    if not isinstance(e, syntax.MapRef):
        return scope.constant(e, "what the host prints")
    use = _map(e, scope)
    if use.columns or use.what not in _SCALAR:
        raise Problem(e.at, f"@{use.name} is not one number", "print(@m) prints all of it")
    return use.name

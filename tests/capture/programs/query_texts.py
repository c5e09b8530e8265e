"""Random queries that make sense, as text: for differential tests and as the seeds of mutations."""

from __future__ import annotations

from hypothesis import strategies as st

_COMMON = (
    "t", "seq", "task", "aux", "request", "step", "dep", "comm", "tile", "class", "worker", "sm", "peer", "hook",
    "dep_class", "flags", "rank", "iteration", "index", "range", "layer", "producer", "expert", "head", "tile.slot",
    "limit",
)  # fmt: skip
_OF = {
    "ready": ("released_by",), "assign": ("target", "depth", "capacity"), "start": ("queue_ns", "since_ns"),
    "complete": ("exec_ns", "since_ns"), "wait": ("seen", "wanted"), "resume": ("wait_ns",),
    "release": ("counter", "wanted"), "send": ("bytes",), "receive": ("wait_ns",), "request": ("slot", "state"),
    "step": ("step_ns", "begins", "ends"), "pressure": ("depth", "threshold", "rises", "falls"), "epoch": ("epoch_ns",),
}  # fmt: skip
_NAMED = (
    'class == "l00.attn"', 'class != "l0*"', 'operator == "attn"', 'operator == "expert_up"', 'dep_class == "data"',
    'hook == "start"', 'request == "req-001"', 'belongs_to("req-000")', "belongs_to(2)", "sample(1/3)",
    'dep != "attn[3]"', 'peer == "all"', 'producer == "l00.attn"',
)  # fmt: skip
_NUMBERS = ("0", "1", "2", "7", "20us", "1k", "-1", "0xff", "4Gi", "0xffffffffffffffff", "9223372036854775807", "3ms")
_OPERATORS = ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>")
_COMPARED = ("==", "!=", "<", ">", "<=", ">=")


class _Writer:
    """Draws one query. fields: what every hook of the clause has; locals: assigned so far in the text."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.fields: tuple[str, ...] = _COMMON
        self.locals: list[str] = []

    def pick(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def value(self, depth: int) -> str:
        kind = self.number(0, 9 if depth else 3)
        if kind <= 1:
            return self.pick(*self.fields)
        if kind == 2:
            return self.pick(*_NUMBERS)
        if kind == 3:
            return f"${self.pick(*self.locals)}" if self.locals else self.pick(*self.fields)
        if kind <= 5:
            return f"({self.value(depth - 1)} {self.pick(*_OPERATORS)} {self.value(depth - 1)})"
        if kind == 6:
            return self.condition(depth - 1)
        if kind == 7:
            return f"({self.condition(depth - 1)} ? {self.value(depth - 1)} : {self.value(depth - 1)})"
        if kind == 8:
            return self.pick("-", "~", "!") + self.value(depth - 1)
        return self.pick("@s", f"@k[{self.value(depth - 1)}]", f"@w[worker, {self.value(depth - 1)}]")

    def condition(self, depth: int) -> str:
        kind = self.number(0, 4 if depth else 1)
        if kind == 0:
            return f"({self.pick(*_NAMED)})"
        if kind <= 2:
            return f"({self.value(max(depth - 1, 0))} {self.pick(*_COMPARED)} {self.value(max(depth - 1, 0))})"
        if kind == 3:
            return f"({self.condition(depth - 1)} {self.pick('&&', '||')} {self.condition(depth - 1)})"
        return f"!{self.condition(depth - 1)}"

    def statement(self, depth: int) -> str:
        v = self.value
        kind = self.number(0, 13 if depth else 11)
        match kind:
            case 0:
                return f"@count[{v(2)}] = count();"
            case 1:
                return self._aggregate()
            case 2:
                return f"@lin[worker] = lhist({v(2)}, -10us, 50us, 3us);"
            case 3:
                return f"@s {self.pick('=', '+=', '-=', '|=', '*=', '>>=')} {v(2)};"
            case 4:
                return f"@k[{v(1)}] {self.pick('=', '+=', '^=', '%=')} {v(2)};"
            case 5:
                return f"@w[worker, {v(1)}]{self.pick('++', '--', ' = t')};"
            case 6:
                return self.pick(f"delete(@k[{v(1)}]);", "delete(@s);", f"delete(@w[worker, {v(1)}]);")
            case 7:
                return "emit();"
            case 8:
                return f'printf("%d %x", {v(1)}, {v(1)});'
            case 9 | 10 | 11:
                name = self.pick("a", "b", "c")
                text = f"${name} = {v(2)};"
                if name in self.locals and self.draw(st.booleans()):
                    text = f"${name} {self.pick('+=', '<<=', '/=')} {v(1)};"
                self.locals.append(name)
                return text
        condition, body = self.condition(2), self.block(depth - 1)
        other = f" else {self.block(depth - 1)}" if self.draw(st.booleans()) else ""
        return f"if ({condition}) {body}{other}"

    def _aggregate(self) -> str:
        what = self.pick("sum", "min", "max", "avg", "stats", "hist")
        return f"@of_{what}[{self.value(1)}] = {what}({self.value(2)});"

    def block(self, depth: int) -> str:
        return "{ " + " ".join(self.statement(depth) for _ in range(self.number(1, 3))) + " }"

    def clause(self) -> str:
        hooks = self.draw(st.lists(st.sampled_from(sorted(_OF)), min_size=1, max_size=2, unique=True))
        shared = set(_OF[hooks[0]]).intersection(*(_OF[h] for h in hooks))
        self.fields, self.locals = (*_COMMON, *sorted(shared) * 4), []
        predicate = f" /{self.condition(2)}/" if self.draw(st.booleans()) else ""
        return f"{','.join(hooks)}{predicate} {self.block(2)}"


@st.composite
def queries(draw: st.DrawFn) -> str:
    """A query over the fields and names of `query_runs.TABLES`."""
    writer = _Writer(draw)
    first = "const limit = 20us; start { @s = 0; @k[0] = 0; @w[worker, 0] = 0; } "
    return first + " ".join(writer.clause() for _ in range(writer.number(1, 3)))

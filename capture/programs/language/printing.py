"""What the host prints of a query: whole maps, the largest entries, rows of printf."""

from __future__ import annotations

from itertools import pairwise

from ..histogram import BUCKETS, HEAD, SUB, lower, middle
from .answers import Answers, Key, Words
from .formats import formatted
from .query import BELOW, Answer, Clear, HostClause, Print, Rows

BAR = 40
"""characters of the longest bar"""
FEW = 1000
"""Quantiles of fewer values are not shown."""
_QUANTILES = ((50, "p50"), (90, "p90"), (99, "p99"))


def acted(clause: HostClause, answers: Answers) -> str:
    """Do what a clause of the host says; the text that it prints."""
    out = []
    for s in clause.statements:
        if isinstance(s, Print):
            out += [f"{line}\n" for line in printed(answers, s.map, s.top)]
        elif isinstance(s, Clear):
            answers.clear(s.map)
        else:
            values = [a if isinstance(a, int) else _only(answers, a) for a in s.args]
            out.append(formatted(s.format, values, [{}] * len(values)))
    return "".join(out)


def rows(answers: Answers, spec: Rows) -> str:
    """The text of a printf's rows, in order of time, and forget them."""
    answer = answers.query.answer(spec.map)
    # Two workers may have said the same at the same time with the same seq: merged, it is one entry that counts two.
    found = [(k, answers.number(spec.map, words)) for k, words in answers.values(spec.map).items()]
    keys = sorted(found, key=lambda kn: (kn[0][1], kn[0][0], kn[0][2]))
    answers.clear(spec.map)
    names = [c.names for c in answer.columns[2:]]
    return "".join(formatted(spec.format, k[3:], names) * n for k, n in keys)


def printed(answers: Answers, name: str, top: int | None = None) -> list[str]:
    """The lines of a map: by key; with `top`, the largest n, largest first."""
    answer = answers.query.answer(name)
    values = list(answers.values(name).items())
    if top is not None:
        values.sort(key=lambda kv: -answers.number(name, kv[1]))
        values = values[:top]
    out = []
    if answer.what == "lhist":
        out += _linear(answer, {k: int(w[0]) for k, w in values})
    else:
        for key, words in values:
            head = f"@{name}{_key(answer, key)}:"
            if answer.what == "hist":
                out += [f"{head} {_summary(words)}", *_histogram(words)]
            elif answer.what == "stats":
                count, total, low, high = map(int, words)
                out.append(f"{head} count {count}, sum {total}, min {low}, max {high}, avg {total // max(count, 1)}")
            else:
                out.append(f"{head} {answers.number(name, words)}")
    if full := answers.refused(name):
        out.append(f"@{name} was full: {full} more were not counted")
    return out


def _only(answers: Answers, name: str) -> int:
    """The number of a map without keys, 0 where nothing was counted."""
    values = list(answers.values(name).values())
    return answers.number(name, values[0]) if values else 0


def _key(answer: Answer, key: Key) -> str:
    """'[l00.attn, 3]'; state says whose it is."""
    columns = answer.columns[: -1 if answer.what == "lhist" else None]
    whose = ""
    if answer.what == "state":
        whose, key = (f" of worker {key[0]}" if key[0] >= 0 else ""), key[1:]
    inside = ", ".join(c.names.get(k, str(k)) for c, k in zip(columns, key, strict=False))
    return (f"[{inside}]" if columns else "") + whose


def _summary(words: Words) -> str:
    count = int(words[0])
    text = f"count {count}, min {int(words[2])}, max {int(words[3])}"
    if count < FEW:
        return text
    return text + "".join(f", {label} {quantile(words, q, 100)}" for q, label in _QUANTILES)


def quantile(words: Words, q: int, of: int) -> int:
    """The q/of quantile of a histogram, as the middle of its bucket, within its min and max."""
    wanted, seen = -(-int(words[0]) * q // of), 0
    for i in range(BUCKETS):
        seen += int(words[HEAD + i])
        if seen >= max(wanted, 1):
            return min(max(middle(i), int(words[2])), int(words[3]))
    return int(words[3])


def _histogram(words: Words) -> list[str]:
    """By powers of two, from the first that has something to the last."""
    counts: dict[tuple[int, int], int] = {}
    for octave in range(BUCKETS // SUB):
        # Below 16 a bucket is one number: its powers of two lie inside the first sixteen buckets.
        cuts = (0, 1, 2, 4, 8, 16) if octave == 0 else (0, SUB)
        for a, b in pairwise(cuts):
            at = octave * SUB
            counts[lower(at + a), lower(at + b)] = int(words[HEAD + at + a : HEAD + at + b].sum())
    return _bars([(f"[{a}, {b})", n) for (a, b), n in counts.items()])


def _linear(answer: Answer, counts: dict[Key, int]) -> list[str]:
    """One group of bars for each key."""
    low, high, step = answer.linear
    out = []
    for key in dict.fromkeys(k[:-1] for k in counts):
        labels = [(f"(…, {low})", BELOW)] + [(f"[{a}, {a + step})", a) for a in range(low, high, step)]
        labels.append((f"[{high}, …)", high))
        of_key = [(label, counts.get((*key, at), 0)) for label, at in labels]
        out += [f"@{answer.map}{_key(answer, key)}: count {sum(n for _, n in of_key)}", *_bars(of_key)]
    return out


def _bars(counts: list[tuple[str, int]]) -> list[str]:
    some = [i for i, (_, n) in enumerate(counts) if n]
    if not some:
        return []
    shown = counts[some[0] : some[-1] + 1]
    most, left, right = max(n for _, n in shown), max(len(t) for t, _ in shown), max(len(str(n)) for _, n in shown)
    return [f"{t:<{left}}  {n:>{right}} |{'@' * (n * BAR // most):<{BAR}}|" for t, n in shown]

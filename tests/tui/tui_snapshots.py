"""Compares the app's picture with a golden one: SVG, with what differs between runs taken out."""

from __future__ import annotations

import difflib
import html
import os
import re
from pathlib import Path

from megascope.tui.app import Megascope

GOLDEN = Path(__file__).parent / "golden"
RENEW = "MEGASCOPE_RENEW_SNAPSHOTS"


def normal(svg: str) -> str:
    """The picture without its random ids, its fonts' addresses and the name of the temporary trace."""
    svg = re.sub(r"terminal-\d+", "terminal", svg)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    # One element a line, so that git shows what has changed.
    return "\n".join(line.rstrip() for line in svg.replace("><", ">\n<").splitlines() if line.strip()) + "\n"


def shown(svg: str) -> list[str]:
    """The text of a picture, a line for each of its lines."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for attributes, told in re.findall(r"<text ([^>]*)>([^<]*)</text>", svg):
        x, y = (re.search(rf'\b{name}="([\d.]+)"', attributes) for name in "xy")
        if x and y:
            rows.setdefault(float(y[1]), []).append((float(x[1]), html.unescape(told).replace("\xa0", " ")))
    return ["".join(t for _, t in sorted(row)).rstrip() for _, row in sorted(rows.items())]


def check(app: Megascope, name: str, out: Path) -> None:
    """Compare with golden/NAME.svg, or write it when $MEGASCOPE_RENEW_SNAPSHOTS is set."""
    got, path = normal(app.export_screenshot()), GOLDEN / f"{name}.svg"
    if os.environ.get(RENEW):
        path.parent.mkdir(exist_ok=True)
        path.write_text(got, encoding="utf-8")
        return
    renew = f"if it should look like this: {RENEW}=1 python -m pytest tests/tui, and commit"
    assert path.is_file(), f"there is no golden picture {path.name}; {renew}"
    want = path.read_text(encoding="utf-8")
    if got != want:
        found = out / f"{name}.svg"
        found.write_text(got, encoding="utf-8")
        lines = list(difflib.unified_diff(shown(want), shown(got), "golden", "now", lineterm="", n=1))
        told = "\n".join(lines) or "(the text is the same: colours or places differ)"
        raise AssertionError(f"{name} looks different:\n{told}\nnow: {found}\n{renew}")

"""docs/ask.md: every command runs, and prints what stands below it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from page import Block, Shell, blocks, matches

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "ask.md").read_text(encoding="utf-8")
BLOCKS = blocks(TEXT)
RECORDED = [b for b in BLOCKS if any("-o" in c.words and not c.background for c in b.commands)]
"""What others ask of is made for each process that runs tests, whichever of them it gets."""
ASKED = [b for b in BLOCKS if b not in RECORDED and not any(c.background for c in b.commands)]
LIVE = [b for b in BLOCKS if any(c.background for c in b.commands)]
LOOKS = ("now", "programs")
PATIENCE_S = 30.0
"""These are asked again for so long, until an engine in the background has come to where it is to be looked at."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Where the recordings of the page stand."""
    made = Shell(tmp_path_factory.mktemp("ask"))
    for block in RECORDED:
        tried(made, block)
    yield made
    made.stop()


def tried(shell: Shell, block: Block, patience_s: float = 0.0) -> None:
    until = time.monotonic() + patience_s
    for command in block.commands:
        printed = shell.run(command)
        while command.words[1] in LOOKS and not matches(command.shown, printed) and time.monotonic() < until:
            time.sleep(0.2)
            printed = shell.run(command)
        assert matches(command.shown, printed), f"{command.line}\nprinted\n{printed}\nand not\n{command.shown}"


@pytest.mark.parametrize("block", ASKED, ids=[b.commands[0].line[10:60] for b in ASKED])
def test_an_answer_is_what_stands_there(shell: Shell, block: Block) -> None:
    tried(shell, block)


@pytest.mark.parametrize("block", LIVE, ids=[b.section for b in LIVE])
def test_a_running_engine_answers_what_stands_there(shell: Shell, block: Block) -> None:
    try:
        tried(shell, block, PATIENCE_S)
    finally:
        shell.stop()


def test_every_command_was_found() -> None:
    assert sum(len(b.commands) for b in BLOCKS) == TEXT.count("\n$ ")
    assert TEXT.count("```console") == len(BLOCKS) == len(RECORDED) + len(ASKED) + len(LIVE)
    assert len(RECORDED) == 6
    assert len(LIVE) == 2


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a 1\nb\n", "a 1\nb\n", True),
        ("a …\nb\n", "a 1 of 2\nb\n", True),
        ("a …\nb\n", "a 1\nb\nc\n", False),
        ("…\nb\n", "b\n", True),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\nd\n", "a\nb\nc\n", False),
        ("a.\n", "ab\n", False),
        ("", "", True),
        ("", "a\n", False),
    ],
)
def test_what_matches(shown: str, printed: str, same: bool) -> None:
    """So that an example that prints something else is noticed."""
    assert matches(shown, printed) == same

"""How a verb ends that is told to, or that cannot write: in order, with the documented code, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SAMPLE = str(Path(__file__).resolve().parents[2] / "sample_traces" / "host.mscope")
BASE = [sys.executable, "-m", "megascope"]
ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
FULL = "megascope: cannot write to standard output: No space left on device; send it elsewhere\n"
PATIENCE_S = 60.0
SIGNALS = [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]


@pytest.mark.parametrize(
    "args",
    [
        *(["sql", SAMPLE, "SELECT * FROM events", "-q", "-f", f] for f in ("table", "csv", "json", "parquet", "arrow")),
        ["report", "classes", SAMPLE],
        ["report", "classes", SAMPLE, "--sql"],
        ["schema"],
        ["lint", SAMPLE, "--rules"],
        ["program", "include"],
        ["replay", SAMPLE, "-q", "--program", "complete { @n = count(); }"],
        ["ls", "--help"],
        ["--help"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_a_full_output_is_one_line(args: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        said = subprocess.run(
            [*BASE, *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S
        )
    assert (said.returncode, said.stderr.splitlines()[-1] + "\n") == (1, FULL)
    assert "Traceback" not in said.stderr


def test_a_closed_output_is_one_line_and_closed_notes_are_none() -> None:
    shell = f'"{sys.executable}" -m megascope '
    out = subprocess.run(shell + "schema >&-", shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert out.returncode == 1
    assert out.stderr == "megascope: cannot write to standard output: Bad file descriptor; send it elsewhere\n"
    for away in ("2>&-", "2>/dev/full"):
        asked = f"{shell} sql {SAMPLE} 'SELECT count(*) AS n FROM events' -f csv {away}"
        notes = subprocess.run(asked, shell=True, stdout=subprocess.PIPE, text=True, check=False)
        assert (notes.returncode, notes.stdout) == (0, "n\n233453\n")
        failed = subprocess.run(f"{shell} sql {SAMPLE} SELEC {away}", shell=True, stdout=subprocess.PIPE, check=False)
        assert (failed.returncode, failed.stdout) == (3, b"")


def scratch_of(place: Path) -> Path:
    """The folder that appears in the temporary directory."""
    until = time.monotonic() + PATIENCE_S
    while not (found := list(place.glob("megascope-*"))):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found[0]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize(
    "args", [["sql", SAMPLE, ENDLESS], ["replay", SAMPLE, "--program", "standard", "-q"]], ids=["sql", "replay"]
)
def test_a_signal_leaves_no_scratch(tmp_path: Path, args: list[str], number: signal.Signals, code: int) -> None:
    child = subprocess.Popen(
        [*BASE, *args],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    scratch_of(tmp_path)
    # Twice, as a shell and its terminal do; a second Ctrl-C is meant.
    for _ in range(1 if number == signal.SIGINT else 2):
        child.send_signal(number)
    _, said = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == code, said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("megascope: ")
    assert not list(tmp_path.glob("megascope-*"))


def test_what_nohup_ignores_is_ignored(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [*BASE, "sql", SAMPLE, ENDLESS],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    scratch_of(tmp_path)
    child.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 143


def test_what_a_killed_verb_left_is_removed_by_the_next(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    child = subprocess.Popen([*BASE, "sql", SAMPLE, ENDLESS], env=environment)
    left = scratch_of(tmp_path)
    child.kill()
    child.wait()
    assert left.exists()
    subprocess.run(
        [*BASE, "sql", SAMPLE, "SELECT 1", "-q"], env=environment, check=True, capture_output=True, timeout=PATIENCE_S
    )
    assert list(tmp_path.iterdir()) == []


def test_a_capture_whose_terminal_is_closed_is_sealed(tmp_path: Path) -> None:
    """The kernel sends SIGHUP then, and whatever is written to the terminal from then on fails."""
    master, slave = os.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, "capture", "demo:steps=100000000", "-o", "a.mscope"],
        cwd=tmp_path,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    until = time.monotonic() + PATIENCE_S
    while not list(tmp_path.glob("a.mscope/spool/*events*")):
        assert time.monotonic() < until
        time.sleep(0.05)
    os.close(master)
    assert child.wait(PATIENCE_S) == 129
    checked = subprocess.run([*BASE, "check", "a.mscope"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    assert "a.mscope: sealed, sound" in checked.stderr
    assert not list(tmp_path.glob("*.mseg"))


TERMINAL = """
import fcntl, runpy, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv[0] = "megascope"
runpy.run_module("megascope", run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_screen_that_is_ended_leaves_no_scratch(tmp_path: Path, number: signal.Signals) -> None:
    master, slave = os.openpty()
    child = subprocess.Popen(
        [*BASE, "tui", SAMPLE, "--no-history"],
        env=os.environ | {"TMPDIR": str(tmp_path), "TERM": "xterm-256color"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    os.set_blocking(master, False)
    until = time.monotonic() + PATIENCE_S
    sent = False
    while child.poll() is None:
        assert time.monotonic() < until
        if not sent and list(tmp_path.glob("megascope-sql-*")):
            child.send_signal(number)
            sent = True
        try:
            os.read(master, 1 << 16)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:
            break
    assert child.wait(PATIENCE_S) == 128 + number
    os.close(master)
    assert not list(tmp_path.glob("megascope-*"))

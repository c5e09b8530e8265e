"""The command line: one line for every mistake, the documented exit codes, no heavy imports where none is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megascope.verbs import verbs

SAMPLE = str(Path(__file__).resolve().parents[2] / "sample_traces" / "host.mscope")
BASE = [sys.executable, "-m", "megascope"]


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BASE, *args], capture_output=True, text=True, cwd=cwd, check=False, timeout=120)


def test_help_names_every_verb_and_the_exit_codes() -> None:
    said = run("--help")
    assert said.returncode == 0
    for verb in verbs():
        assert f"\n    {verb.name} " in said.stdout
        one = run(verb.name, "--help")
        assert (one.returncode, one.stderr) == (0, "")
        assert (type(verb).__doc__ or "").splitlines()[0] in one.stdout
    for code in ("0 done", "1 failed", "2 usage", "3 refused", "4 done, but incomplete", "130 interrupted"):
        assert code in " ".join(said.stdout.split())
    for code in ("129 terminal closed (SIGHUP)", "143 terminated (SIGTERM)"):
        assert code in " ".join(said.stdout.split())


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["captur"], 2, "did you mean capture?"),
        (["frobnicate"], 2, "it has capture, ls, now"),
        (["capture", "--sceonds", "3"], 2, "unrecognized arguments"),
        (["capture", "demo", "-o", "x.txt"], 2, "does not end in .mscope"),
        (["capture", "nothing.mseg", "-o", "x.mscope"], 2, "neither demo, cuda nor a segment that exists"),
        (["capture", "-o", "x.mscope"], 2, "no engine is live"),
        (["capture", "demo", "-o", "x.mscope", "--", "true"], 2, "both a target and a command"),
        (["capture", "-o", "x.mscope", "--", "/no/such/command"], 1, "cannot run /no/such/command"),
        (["capture", "-o", "x.mscope", "--", "false"], 1, "cannot start the engine"),
        (["capture", "demo:wrokers=4", "-o", "x.mscope"], 2, "wrokers"),
        (["capture", "demo", "--max-bytes", "much", "-o", "x.mscope"], 2, "--max-bytes"),
        (["now", "absent.mseg"], 1, "No such file"),
        (["now"], 2, "no engine is live"),
        (["ls", "--", "x"], 2, "takes no command"),
        (["sql", "absent.mscope", "SELECT 1"], None, "absent.mscope"),
        (["check", "absent.mscope"], None, "absent.mscope"),
        (["attach", "complete { @n = count(); }"], 2, "no engine is live"),
        (["attach", "absent.mseg", "complete { @n = count(); }"], 1, "megascope ls shows the live ones"),
        (["attach", SAMPLE, "complete { @n = count(); }"], 1, "Is a directory; megascope ls shows the live ones"),
        (["detach", "absent.mseg", "lat"], 1, "No such file"),
        (["programs", "absent.mseg"], 1, "No such file"),
        (["replay", "absent.mscope", "--program", "latency"], 3, "there is no absent.mscope"),
        (["replay", SAMPLE], 2, "no program is named"),
        (["replay", SAMPLE, "--program", "latncy"], 2, "and it is no query; did you mean latency?"),
        (["program", "check", "."], 2, "cannot load .: it is a directory; name an object"),
        (["replay", SAMPLE, "--program", "lost.o"], 2, "there is no such file, and it is no query; name an object"),
        (["replay", SAMPLE, "--program", "latency", "--set", "a=1"], 2, "no program has a constant a; they have none"),
        (["replay", SAMPLE, "--program", "slow_tasks", "--set", "treshold_ns=1"], 2, "did you mean threshold_ns?"),
        (["replay", SAMPLE, "--program", "slow_tasks", "--set", "threshold_ns=x"], 3, "cannot load program slow_tasks"),
        (["replay", SAMPLE, "--program", "latency", "--budget", "rows"], 2, "say --budget instructions=1000000,rows="),
        (["replay", SAMPLE, "--program", "latency", "-o", SAMPLE], 3, "it is the trace that is replayed"),
        (["replay", SAMPLE, "--program", "latency", "-o", "no/x.mscope"], 3, "there is no directory no; create it"),
        (["replay", "absent.mscope", "--program", "latency", "-o", "no/x.mscope"], 3, "there is no directory no"),
        (["capture", "demo:steps=5", "-o", "no/x.mscope"], 3, "cannot create no/x.mscope: there is no directory no"),
        (["replay", SAMPLE, "--program", "latency", "--budget", "foo=1"], 2, "neither instructions=N nor rows=N"),
        (["replay", SAMPLE, "--program", "latency", "--limit", "-1"], 2, "--limit: '-1' is not a number of rows"),
        (["sql", SAMPLE, "SELECT 1", "--limit", "-1"], 2, "--limit: '-1' is not a number of rows: 0 or more"),
        (["sql", SAMPLE, "SELECT 1", "--timeout", "0"], 2, "--timeout: '0' is not a number of seconds above 0"),
        (["sql", SAMPLE, "SELECT 1", "--threads", "x"], 2, "--threads: 'x' is not a number of threads: 1 to 4096"),
        (["tui", SAMPLE, "--threads", "0"], 2, "--threads: '0' is not a number of threads"),
        (["capture", "demo", "--seconds", "-1"], 2, "--seconds: '-1' is not a number of seconds above 0"),
        (["capture", "demo", "--max-loss", "nan"], 2, "--max-loss: 'nan' is not a percentage from 0 to 100"),
        (["capture", "demo", "--keep", "5 parsecs"], 2, "'5 parsecs' is not a length of time such as 500ms"),
        (["mark", "hello", "--keep", "x"], 2, "'x' is not a length of time such as 500ms, 30s, 10m or 2h"),
        (["sql", SAMPLE, "SELECT 1", "-o", "no/x.csv"], 3, "there is no directory no; create it first"),
        (["sql", SAMPLE, "SELECT 1", "-o", "o.xyz"], 2, "its ending .xyz is none of .txt, .csv, .json, .jsonl"),
        (["report", "waits", SAMPLE, "-o", "x.csv"], 2, "its ending .csv is none of .txt, .json, .parquet; use one"),
        (["report", "waits", SAMPLE, "-o", "x.jsonl"], 2, "its ending .jsonl is none of .txt, .json, .parquet"),
        (["report", SAMPLE, "classes"], 2, f"comes before the trace; say megascope report classes {SAMPLE}"),
        (["report", "absent.mscope", "clases"], 2, "comes before the trace; say megascope report NAME absent.mscope"),
        (["report", "classes"], 2, "no trace is named; say megascope report classes TRACE"),
        (["report", "classes", SAMPLE, "--from", "+5s"], 2, "4,965.175 ms after the trace's end; the trace goes from"),
        (["report", "classes", SAMPLE, "--to", "5"], 2, "5 ns is 1.000 ms before the trace begins; the trace goes"),
        (["report", "classes", SAMPLE, "--frm", "+1ms"], 2, "unrecognized arguments: --frm"),
        (["sql", SAMPLE, "SELECT * FROM maps.query_x"], 3, 'ask "SHOW TABLES" to see every view'),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, args: list[str], code: int | None, says: str) -> None:
    said = run(*args, cwd=tmp_path)
    assert said.stdout == ""
    assert len(said.stderr.splitlines()) == 1, said.stderr
    assert said.stderr.startswith("megascope: ")
    assert says in said.stderr
    assert said.returncode == code or (code is None and said.returncode in (1, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("at", [1, 2, 3])
def test_options_stand_anywhere(at: int) -> None:
    """Also before an argument that comes after one that may be left out."""
    words = ["report", "waits", SAMPLE]
    assert "SELECT" in run(*words[:at], "--sql", *words[at:]).stdout
    asked = [run(*words[:i], "--from", "+1ms", "-f", "json", *words[i:]).stdout for i in (at, 3)]
    assert asked[0] == asked[1]
    assert '"report": "waits"' in asked[0]


def test_a_verb_with_arguments_that_may_be_missing() -> None:
    """Each is given what stands for it, wherever the options are."""
    assert (
        run("schema", "-f", "markdown", "loss", "now").stdout == run("schema", "loss", "-f", "markdown", "now").stdout
    )
    for words in (["mark", "hi", "--keep=1s", "absent.mseg"], ["programs", "absent.mseg"]):
        assert "absent.mseg" in run(*words).stderr
    query = "complete { @n = count(); }"
    shown = [
        run("program", "check", *w).stdout
        for w in (["-e", query, SAMPLE], [query, "-e", SAMPLE], [query, SAMPLE, "-e"])
    ]
    assert shown[0].startswith("accepted")
    assert shown == shown[:1] * 3


def test_no_argument_shows_help_and_is_a_usage_error() -> None:
    said = run()
    assert said.returncode == 2
    assert "VERB" in said.stdout


def test_headless_verbs_import_neither_a_screen_nor_cuda(tmp_path: Path) -> None:
    code = (
        "import sys; from megascope.__main__ import run\n"
        f"import os; os.chdir({str(tmp_path)!r})\n"
        "run(['capture', 'demo:steps=20', '-o', 'a.mscope', '--quiet']); run(['ls']); run(['check', 'a.mscope'])\n"
        "run(['sql', 'a.mscope', 'SELECT count(*) FROM events']); run(['schema'])\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('textual', 'cupy', 'pycuda', 'cuda', 'cupti')]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)


def test_a_verb_imports_no_other_verbs_modules(tmp_path: Path) -> None:
    for verb, others in (
        (["sql", SAMPLE, "SELECT 1"], ("megascope.capture", "megascope.tui", "megascope.store.pairing")),
        (["check", SAMPLE], ("megascope.capture", "megascope.analyze", "duckdb")),
        (["ls"], ("megascope.analyze", "megascope.tui", "duckdb", "lark", "llvmlite", "numba")),
        (["schema"], ("megascope.capture", "megascope.tui", "lark", "llvmlite", "numba", "polars")),
    ):
        code = (
            "import sys; from megascope.__main__ import run\n"
            f"run({verb!r})\n"
            f"bad = [m for m in sys.modules for o in {others!r} if m == o or m.startswith(o + '.')]\n"
            "assert not bad, bad"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (verb, done.stderr)


def test_a_demo_is_recorded_checked_and_asked(tmp_path: Path) -> None:
    recorded = run("capture", "demo:steps=200,workers=8", "-o", "a.mscope", cwd=tmp_path)
    assert recorded.returncode == 0, recorded.stderr
    assert "wrote a.mscope: " in recorded.stderr
    assert "look: megascope report overview a.mscope" in recorded.stderr
    assert not list(tmp_path.glob("*.mseg"))
    assert run("check", "a.mscope", cwd=tmp_path).returncode == 0
    asked = run("sql", "a.mscope", "SELECT count(*) AS n, max(step) AS s FROM events", "--format", "csv", cwd=tmp_path)
    assert asked.stdout.splitlines()[0] == "n,s"
    assert int(asked.stdout.splitlines()[1].split(",")[1]) in (199, 200)
    # Before an engine is started: nothing else is said.
    again = run("capture", "demo:steps=20", "-o", "a.mscope", cwd=tmp_path)
    assert again.returncode == 3
    assert again.stderr == "megascope: cannot create a.mscope: it exists; use --force to replace a trace\n"
    assert run("capture", "demo:steps=20", "-o", "a.mscope", "--force", cwd=tmp_path).returncode == 0


def test_ctrl_c_seals(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [*BASE, "capture", "demo:steps=100000000", "-o", "a.mscope"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("a.mscope/spool/*events*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert "wrote a.mscope" in said
    assert "Traceback" not in said
    assert run("check", "a.mscope", cwd=tmp_path).returncode == 0
    assert not list(tmp_path.glob("*.mseg"))


def test_the_engine_of_a_killed_capture_does_not_outlive_it(tmp_path: Path) -> None:
    child = subprocess.Popen([*BASE, "capture", "demo:steps=100000000", "-o", "a.mscope", "--quiet"], cwd=tmp_path)
    while not (found := list(tmp_path.glob("*.mseg"))):
        time.sleep(0.05)
    engine = int(
        subprocess.run(["fuser", str(found[0])], capture_output=True, text=True, check=False).stdout.split()[0]
    )
    child.kill()
    child.wait()
    deadline = time.monotonic() + 90
    while Path(f"/proc/{engine}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{engine}").exists()


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    assert run("capture", "demo:steps=50", "-o", "a.mscope", cwd=tmp_path).returncode == 0
    child = subprocess.Popen(
        [*BASE, "sql", "a.mscope", "SELECT * FROM events", "--format", "csv"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert b"Traceback" not in child.stderr.read()
    child.wait(timeout=60)
    assert os.WEXITSTATUS(child.returncode) >= 0

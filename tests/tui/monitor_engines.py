"""Engines with programs for the tests of the Monitors screen: one that stands still at its end, and recordings."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tui_recordings import HOST, SMALL

from megascope.capture import attaching, session
from megascope.capture.engines.host.__main__ import layout_of
from megascope.capture.engines.host.engine import HostEngine
from megascope.capture.engines.host.spec import parse_spec
from megascope.capture.programs import standard
from megascope.capture.programs.execution import Limits
from megascope.capture.programs.program import Program
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.sink import SegmentSink
from megascope.capture.segment.writer import SegmentWriter
from megascope.capture.session import Session

PATIENCE_S = 60.0
STEPS = 30
ENDLESS = SMALL + ",workers=4,steps=0,pace=0.02"
"""Slow, so that it leaves the processor to who looks at it."""
FULL = "map @few[of_class] size 3; complete { @few[class] = count(); @took[class] = max(exec_ns); }"
WAITS = "resume /wait_ns > 1us/ { @waits[dep_class, class] = hist(wait_ns); @all = stats(wait_ns); }"
Asked = Sequence[tuple[Program, Limits]]


def query(text: str, name: str, engine: HostEngine) -> Program:
    """A query, with the names that the engine gives."""
    return attaching.load(text, {}, engine.tables(), name=name, query=True)


@dataclass
class Standing:
    """An engine that stands still in the middle of its run. trace: of what it told so far, open still."""

    segment: Path
    trace: Path


@contextmanager
def standing(folder: Path, *, programs: bool = True) -> Iterator[Standing]:
    """An engine of this process that stops after 30 steps until it is left, and a recording that has all it told."""
    made = HostEngine(parse_spec(HOST.replace(f"steps={STEPS}", "steps=0") + ",telemetry=0"))
    made.load()
    asked: Asked = ()
    if programs:
        asked = (
            (query(WAITS, "waits_over", made), Limits()),
            (query(FULL, "busy", made), Limits(instructions=8_000)),
        )
    path, out = folder / "standing.mseg", folder / "standing.mscope"
    quiet = session.QUIET_S
    leave, stands, failed = threading.Event(), threading.Event(), list[BaseException]()

    def stop() -> bool:
        if made.step < STEPS:
            return False
        # Virtual time stands, and whoever asks is answered.
        while not leave.wait(0.1 if stands.is_set() else 0.0):
            assert made._monitors is not None
            made._monitors.publish()
            stands.set()
        return True

    about = {"kind": "host", "params": {}, "perturbation": {}}
    with SegmentWriter.create(path, layout_of(made.spec), side_tables=made.tables(), engine=about) as writer:

        def run() -> None:
            try:
                result = made.run(SegmentSink(writer), stop, hold=True)
                writer.end(result.t, max(result.steps - 1, 0))
            except BaseException as error:
                failed.append(error)
                writer.end(made.t, 0, failed=True)
            finally:
                stands.set()

        engine = threading.Thread(target=run)
        engine.start()
        with SegmentReader.open(path, write=True) as segment:
            recording = Session(segment, out)
            recorder = threading.Thread(target=recording.run, kwargs={"stopped": lambda: False})
            try:
                for program, limits in asked:
                    recording.attach(program, limits)
                recorder.start()
                assert stands.wait(PATIENCE_S)
                _come_to_rest(recording)
                # An idle process is what the pilot waits for before it looks.
                session.QUIET_S = 0.3
                yield Standing(path, out)
            finally:
                session.QUIET_S = quiet
                leave.set()
                if not recorder.ident:
                    recorder.start()
                engine.join()
                recorder.join()
                recording.release()
    assert not failed, failed


def _come_to_rest(recording: Session) -> None:
    """Until all that the engine told has been taken, and flushed."""
    deadline, before, quiet = time.monotonic() + PATIENCE_S, -1, 0
    while quiet < 5:
        assert time.monotonic() < deadline
        rows = sum(recording.writer.rows.values())
        quiet = quiet + 1 if rows == before else 0
        before = rows
        time.sleep(0.1)


def monitored(out: Path) -> Path:
    """A sealed recording with two standard monitors and two queries: of one a map was full and its budget spent."""
    made = HostEngine(parse_spec(HOST))
    made.load()
    path = out.with_suffix(".mseg")
    asked: Asked = (
        *((standard.load(name), standard.BY_NAME[name].limits) for name in ("latency", "comm")),
        (query(FULL, "busy", made), Limits(instructions=8_000)),
        (query('complete /sample(1/8)/ { emit(); } request { printf("%s", state); }', "eighth", made), Limits()),
    )
    about = {"kind": "host", "params": {}, "perturbation": {}}
    with SegmentWriter.create(path, layout_of(made.spec), side_tables=made.tables(), engine=about) as writer:

        def run() -> None:
            result = made.run(SegmentSink(writer), lambda: False, hold=True)
            writer.end(result.t, max(result.steps - 1, 0))

        engine = threading.Thread(target=run)
        engine.start()
        with SegmentReader.open(path, write=True) as segment:
            recording = Session(segment, out)
            try:
                for program, limits in asked:
                    recording.attach(program, limits)
                recording.run(stopped=lambda: False)
            finally:
                engine.join()
                recording.release()
    path.unlink(missing_ok=True)
    return out

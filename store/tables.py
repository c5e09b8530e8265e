"""Every table and column of Megascope, once: type, unit, meaning.

The hook ABI's event row (`EVENT_ROW`) is the root. What a trace keeps of it (`EVENTS`), the other streams, the
side tables of the compiler and the engine's own tables are declared beside it. Arrow schemas, numpy types, the CUDA
and eBPF headers, `schema.json`, the SQL views' types and the documentation are all rendered from here.

Stored integers are signed wherever the ABI's unsigned range fits, so that a difference in SQL is a difference.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

ABI_MAJOR = 1
ABI_MINOR = 0
FORMAT_VERSION = 1

RECORDER = 1
"""Program id of the built-in recorder, in slot 0. 0 stands for no program; an id is never used again in a run."""

REQUEST_UNKNOWN = 0xFFFF_FFFF
REQUEST_SET_BIT = 0x8000_0000
PEER_ALL = 0xFFFE
PEER_NONE = 0xFFFF
FLAG_RANGE = 0x80
MAX_WORKERS = 0x7FFF
"""Worker ids stay below this so that `assign`'s aux, which carries one in its top bits, fits a signed integer."""

_ARROW: dict[str, pa.DataType] = {
    "u8": pa.uint8(),
    "u16": pa.uint16(),
    "u32": pa.uint32(),
    "u64": pa.uint64(),
    "i16": pa.int16(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "f64": pa.float64(),
    "bool": pa.bool_(),
    "str": pa.string(),
    "strs": pa.list_(pa.string()),
    "u8s": pa.list_(pa.uint8()),
    "i64s": pa.list_(pa.int64()),
}
_STORED = {"u8": "i16", "u16": "i32", "u32": "i64", "u64": "i64"}


@dataclass(frozen=True)
class Column:
    """One column: `type` is a key of the table above, `unit` is ns, bytes, rows … or empty."""

    name: str
    type: str
    meaning: str
    unit: str = ""
    nullable: bool = False

    @property
    def arrow(self) -> pa.DataType:
        return _ARROW[self.type]

    @property
    def field(self) -> pa.Field[Any]:
        return pa.field(self.name, self.arrow, nullable=self.nullable)

    @property
    def bits(self) -> int:
        """Width of an integer column.

        Raises KeyError for a column that is no integer.
        """
        return {"u8": 8, "u16": 16, "u32": 32, "u64": 64, "i16": 16, "i32": 32, "i64": 64}[self.type]

    @property
    def stored(self) -> Column:
        """The same column as a trace keeps it: signed, and wide enough (u64 keeps its 64 bits)."""
        return Column(self.name, _STORED.get(self.type, self.type), self.meaning, self.unit, self.nullable)


@dataclass(frozen=True)
class Table:
    """A table: columns in order; `key` names the columns that make a row unique, if any do."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __getitem__(self, name: str) -> Column:
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {c.name: c for c in self.columns}

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns)

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema, without metadata, so that schemas compare by columns alone."""
        return pa.schema([c.field for c in self.columns])

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The packed little-endian numpy record of an all-integer table."""
        kinds = {"u": "u", "i": "i"}
        return np.dtype([(c.name, f"<{kinds[c.type[0]]}{c.bits // 8}") for c in self.columns])

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of each column in the packed record."""
        out, at = {}, 0
        for c in self.columns:
            out[c.name] = at
            at += c.bits // 8
        return out


EVENT_ROW = Table(
    "event_row",
    "The 64-byte row of hook ABI v1, little-endian, as a program's context sees it.",
    (
        Column("t", "u64", "device time of the firing", "ns"),
        Column("seq", "u64", "this worker's count of events, from 1; each number is dequeued once or lost once"),
        Column("task", "u64", "task generation: iteration << 32 | index"),
        Column("aux", "u64", "by hook: see `hooks`"),
        Column("request", "u32", "0 none, 0xffffffff unknown, top bit: a request set, else a request generation"),
        Column("step", "u32", "iteration of the engine"),
        Column("dep", "u32", "dependency id, 0 none"),
        Column("comm", "u32", "comm generation, alike on every rank, 0 none"),
        Column(
            "tile",
            "u32",
            "coordinates packed as `tile_fields` says; with flag range: how many tasks the row stands for",
        ),
        Column("task_class", "u16", "key of `task_classes`"),
        Column("worker", "u16", "who fired it"),
        Column("sm", "u16", "multiprocessor"),
        Column("peer", "u16", "remote rank; 0xfffe all, 0xffff none"),
        Column("hook", "u8", "key of `hooks`"),
        Column("dep_class", "u8", "0 none, 1 data, 2 communication, 3 resource, 4 control"),
        Column("flags", "u8", "bit 7 range; the rest by hook"),
        Column("rank", "u8", "this device in a run over several"),
    ),
    key=("rank", "worker", "seq"),
)

BY = Column("by", "u32", "who emitted the row: bit 0 the recorder, bit i the program in slot i (see `programs`)")

RING_ROW = Table(
    "ring_row", "A row in the segment's event ring: the event row and who emitted it.", (*EVENT_ROW.columns, BY)
)

_AUX = "by hook, two's complement of the 64 bits; null where the hook carries a time (see since_ns)"
EVENTS = Table(
    "events",
    "One row per recorded firing of a hook.",
    tuple(
        stored
        for column in RING_ROW
        for stored in (
            (
                Column(
                    "since_ns",
                    "i64",
                    "t minus the time in aux; null where the hook carries none or it is not known",
                    "ns",
                    True,
                ),
                Column("aux", "i64", _AUX, "", True),
            )
            if column.name == "aux"
            else (column.stored,)
        )
    ),
    key=("rank", "worker", "seq"),
)
SINCE_MAX = 0xFFFF_FFFF
"""`since_ns` saturates here (4.29 s) and the saturation is counted as loss kind `since_saturated`."""

_WHERE = (
    Column("rank", "i16", "device"),
    Column("worker", "i32", "worker; null: merged over `workers` workers", "", True),
    Column("workers", "i32", "how many workers the row stands for"),
)
_WHEN = (
    Column("epoch", "i64", "first epoch of the interval: t div epoch length"),
    Column("epochs", "i32", "how many epochs the interval spans"),
    Column("t_begin", "i64", "begin of the interval", "ns"),
    Column("t_end", "i64", "end of the interval", "ns"),
)
_CLOSED = Column("closed", "bool", "false: cut short by a death, so eligible is unknown and identities are not claimed")

INTERVALS = Table(
    "intervals",
    "What became of every sequence number: seqs = dequeued + lost, whatever programs were attached.",
    (
        *_WHERE,
        *_WHEN,
        Column("seq_from", "i64", "first sequence number of the interval; null when merged", "", True),
        Column("seq_to", "i64", "one past the last; null when merged", "", True),
        Column("seqs", "i64", "sequence numbers given out: the sum of seq_to - seq_from"),
        Column("dequeued", "i64", "taken from a worker's queue by its monitor"),
        Column("lost", "i64", "never dequeued: the worker's queue was full"),
        Column("unclaimed", "i64", "dequeued while no program was attached to their hook"),
        _CLOSED,
    ),
)

COVERAGE = Table(
    "coverage",
    "Per program and hook: eligible = observed + throttled + lost + faulted; "
    "emitted = written + ring_lost + emit_throttled.",
    (
        *_WHERE,
        Column("program", "i32", "key of `programs`"),
        Column("hook", "i16", "key of `hooks`"),
        *_WHEN,
        Column("eligible", "i64", "events at hooks the program was attached to"),
        Column("observed", "i64", "the program ran to its end"),
        Column("throttled", "i64", "its budget for the epoch was spent before it ran"),
        Column("lost", "i64", "never dequeued"),
        Column("faulted", "i64", "stopped by the VM"),
        Column("emitted", "i64", "rows the program asked to export"),
        Column("written", "i64", "rows that reached the event ring"),
        Column("ring_lost", "i64", "rows refused because the event ring was full"),
        Column("emit_throttled", "i64", "rows refused because the emit limit was spent"),
        _CLOSED,
    ),
)

LOSS = Table(
    "loss",
    "Everything that is known to be missing: how much, where, when, and what to do.",
    (
        Column("kind", "str", "key of `loss_kinds`"),
        Column("severity", "str", "info, degraded or damaged"),
        Column("rank", "i16", "device, where it has one", "", True),
        Column("worker", "i32", "worker, where it has one", "", True),
        Column("monitor", "i32", "monitor, where it has one", "", True),
        Column("hook", "i16", "hook, where it is known", "", True),
        Column("count", "i64", "how many rows, records or bytes (see the kind's unit)"),
        Column("t_begin", "i64", "no earlier than", "ns", True),
        Column("t_end", "i64", "no later than", "ns", True),
        Column("detail", "str", "what is known beyond that"),
    ),
)

NOW = Table(
    "now",
    "Each worker's last word when the recording ended: what it waited for, or that it was not waiting.",
    (
        Column("rank", "i16", "device"),
        Column("worker", "i32", "worker"),
        Column("waiting", "bool", "true: on entry of a wait that had not been resumed"),
        Column("t", "i64", "begin of that wait", "ns", True),
        Column("task", "i64", "task generation that waits, 0 none (an idle worker)", "", True),
        Column("dep", "i64", "dependency waited for, 0: for work", "", True),
        Column("seen", "i64", "counter on entry, relative to the iteration", "", True),
        Column("wanted", "i64", "counter wanted", "", True),
        Column("fired", "i64", "events fired so far"),
        Column("heartbeat", "i64", "last sign of life of its monitor", "ns"),
    ),
    key=("rank", "worker"),
)

STREAMS = (EVENTS, INTERVALS, COVERAGE, LOSS, NOW)
"""What a recording produces; each is a folder of the trace."""

TASKS = Table(
    "tasks",
    "One row per task generation, put together from its ready, assign, start and complete events wherever they fired.",
    (
        Column("rank", "i16", "device"),
        Column("task", "i64", "task generation: iteration << 32 | index"),
        Column("task_class", "i32", "key of `task_classes`"),
        Column(
            "ready", "i64", "its last dependency was satisfied; from the start event where its own was lost", "ns", True
        ),
        Column("assign", "i64", "put in a worker's queue; before `ready` where the runtime prelaunches", "ns", True),
        Column("start", "i64", "a worker began it; from the complete event where its own was lost", "ns", True),
        Column("complete", "i64", "the worker had finished it; null: lost, or it never ended", "ns", True),
        Column("exec_ns", "i64", "complete - start", "ns", True),
        Column("queue_ns", "i64", "start - ready", "ns", True),
        Column("worker", "i32", "who ran it", "", True),
        Column("ready_worker", "i32", "who found it ready", "", True),
        Column("assigned_worker", "i32", "whose queue it was put in", "", True),
        Column("request", "i64", "as in `events`, of the latest of its events"),
        Column("step", "i64", "iteration of the engine, of the latest of its events"),
        Column("tile", "i64", "coordinates; null where only range rows of it were seen", "", True),
        Column("released_by", "i64", "task generation that released its last dependency, 0 none", "", True),
        Column("dep", "i64", "that dependency, 0 none", "", True),
        Column("dep_class", "i16", "kind of that dependency", "", True),
        Column("missing", "i16", "expected events that were not recorded: 1 ready, 2 assign, 4 start, 8 complete"),
        Column(
            "flags",
            "i16",
            "1 shared by a request set, 2 prelaunched, 4 ran elsewhere than assigned, "
            "8 given up: too many were open, so later events of it stand in a row of their own",
        ),
    ),
)

WAITS = Table(
    "waits",
    "One row per wait of a worker, put together from its wait and resume events.",
    (
        Column("rank", "i16", "device"),
        Column("worker", "i32", "who waited"),
        Column("task", "i64", "task generation that waited, 0 none: the worker itself, for work"),
        Column("task_class", "i32", "its class, 0 none"),
        Column("dep", "i64", "dependency waited for, 0: for work"),
        Column("dep_class", "i16", "its kind, 0 none"),
        Column("t_begin", "i64", "begin; from the resume event where the wait event was lost", "ns", True),
        Column("t_end", "i64", "end; null: lost, or it never ended", "ns", True),
        Column("ns", "i64", "t_end - t_begin", "ns", True),
        Column("seen", "i64", "counter on entry, relative to the iteration", "", True),
        Column("wanted", "i64", "counter wanted", "", True),
        Column("request", "i64", "as in `events`"),
        Column("step", "i64", "iteration of the engine"),
        Column("missing", "i16", "expected events that were not recorded: 1 wait, 2 resume"),
        Column("open", "bool", "no event of its worker followed: it still waited when the recording ended"),
    ),
)

TILES = Table(
    "tiles",
    "What each worker did in each slice of time: slice n of level L is [n << L, (n + 1) << L). Rows of a slice add up.",
    (
        Column("rank", "i16", "device"),
        Column("worker", "i32", "worker; null: lost events of workers that are not known", "", True),
        Column("level", "i16", "L: 16, 18 … 26", "bits"),
        Column("tile", "i64", "first slice: t >> level"),
        Column("span", "i64", "slices the row stands for, each wholly inside one task or wait; or where the loss lies"),
        Column("busy", "i64", "time inside tasks", "ns"),
        Column("wait_none", "i64", "time waiting for work", "ns"),
        Column("wait_data", "i64", "time waiting for data", "ns"),
        Column("wait_communication", "i64", "time waiting for a peer", "ns"),
        Column("wait_resource", "i64", "time waiting for a resource", "ns"),
        Column("wait_control", "i64", "time waiting for control", "ns"),
        Column("top_class", "i32", "task class with the most time in it", "", True),
        Column("top_ns", "i64", "its time", "ns"),
        Column("tasks", "i64", "tasks that started in it"),
        Column("lost", "i64", "events of the worker lost somewhere in these slices"),
    ),
)

DERIVED = (TASKS, WAITS, TILES)
"""What sealing derives from the events; each is a folder of the trace and can be built again from them."""

TASK_CLASSES = Table(
    "task_classes",
    "What kinds of work the megakernel does.",
    (
        Column("id", "i32", "task_class of an event"),
        Column("name", "str", "short name, unique"),
        Column("operator", "str", "operator of the model it belongs to"),
        Column("layer", "i32", "layer, -1 where it has none"),
        Column("device_function", "str", "symbol of the device code that runs it; empty when not known"),
        Column("tensor_region", "str", "what it writes, for people"),
        Column("expected_dep_classes", "u8s", "dependency classes a task of it may wait for"),
    ),
    key=("id",),
)

DEPENDENCIES = Table(
    "dependencies",
    "Elements of event tensors: counters that tasks wait on. Counted from 0 in every iteration.",
    (
        Column("id", "i64", "dep of an event, from 1"),
        Column("name", "str", "event tensor and coordinate, for people"),
        Column("event_tensor", "str", "event tensor"),
        Column("coordinate", "i64s", "coordinate in it"),
        Column("kind", "i16", "dep_class"),
        Column("wanted", "i64", "releases until it is satisfied"),
        Column("producer_class", "i32", "task_class that releases it; -1 several"),
        Column("rank", "i16", "device that holds the counter"),
    ),
    key=("id",),
)

WORKERS = Table(
    "workers",
    "Who fires hooks.",
    (
        Column("worker", "i32", "worker id, unique over all ranks"),
        Column("monitor", "i32", "monitor that drains its queue"),
        Column("sm", "i32", "multiprocessor, -1 where not known"),
        Column("role", "str", "compute, scheduler, …"),
        Column("rank", "i16", "device"),
    ),
    key=("worker",),
)

TILE_FIELDS = Table(
    "tile_fields",
    "How `tile` packs coordinates, by task class: (tile >> shift) & (2^bits - 1).",
    (
        Column("task_class", "i32", "task class"),
        Column("name", "str", "coordinate: row, head, expert, …"),
        Column("shift", "i16", "lowest bit", "bits"),
        Column("bits", "i16", "width", "bits"),
    ),
    key=("task_class", "name"),
)

STATIC_TASKS = Table(
    "static_tasks",
    "The tasks of one iteration.",
    (
        Column("index", "i64", "low half of a task generation"),
        Column("task_class", "i32", "task class"),
        Column("tile", "i64", "coordinates"),
        Column("rank", "i16", "device"),
        Column("worker", "i32", "worker under the static schedule, -1 when it is dynamic"),
        Column("order", "i64", "position in that worker's list, -1 when it is dynamic"),
        Column("dep", "i64", "dependency that must be satisfied before it starts, 0 none"),
    ),
    key=("index",),
)

TASK_DEPS = Table(
    "task_deps",
    "Edges of the graph: which task waits on and which task releases which dependency.",
    (
        Column("index", "i64", "task"),
        Column("dep", "i64", "dependency"),
        Column("releases", "bool", "true: the task releases it; false: it waits on it"),
    ),
    key=("index", "dep", "releases"),
)

COMPILER_TABLES = (TASK_CLASSES, DEPENDENCIES, WORKERS, TILE_FIELDS, STATIC_TASKS, TASK_DEPS)
"""Static: given when the engine starts."""

REQUESTS = Table(
    "requests",
    "Request generations: one occupancy of a slot each.",
    (
        Column("request", "i64", "request generation, from 1"),
        Column("slot", "i64", "slot it occupied"),
        Column("external_id", "str", "the serving system's own name for it"),
        Column("model", "str", "model"),
        Column("tenant", "str", "tenant"),
        Column("arrival", "i64", "device time when the engine learned of it", "ns"),
        Column("prompt_tokens", "i64", "tokens of the prompt"),
        Column("max_tokens", "i64", "tokens it may generate"),
    ),
    key=("request",),
)

REQUEST_SETS = Table(
    "request_sets",
    "Batches: which requests share the work booked to a set. Work shared by a batch belongs to all of it.",
    (
        Column("request_set", "i64", "set id, without the top bit that marks a set in an event"),
        Column("request", "i64", "member"),
    ),
    key=("request_set", "request"),
)

STEP_REQUESTS = Table(
    "step_requests",
    "Membership: a request was in the batch from one step to another.",
    (
        Column("from_step", "i64", "first step"),
        Column("to_step", "i64", "last step, inclusive; -1 while it goes on"),
        Column("request", "i64", "request generation"),
        Column("slot", "i64", "slot"),
        Column("position", "i64", "its decode position at the first step"),
    ),
    key=("from_step", "request"),
)

ENGINE_TABLES = (REQUESTS, REQUEST_SETS, STEP_REQUESTS)
"""Told by the engine while it runs, through the segment's host ring; of rows with the same key the last counts."""

SIDE_TABLES = (*COMPILER_TABLES, *ENGINE_TABLES)

MARKS = Table(
    "marks",
    "Moments that somebody pointed at while it was recorded: a trigger's query that fired, or a note.",
    (
        Column("mark", "i64", "number, from 1 in the order in which the recorder took them"),
        Column("t", "i64", "when: of a trigger its first firing, of a note the engine's time when it came", "ns"),
        Column("kind", "str", "trigger or mark"),
        Column("text", "str", "the note; of a trigger its name"),
        Column("program", "i32", "of a trigger: key of `programs`", "", True),
        Column("firings", "i64", "rows that the trigger emitted whose stretches run into one another; 1 of a note"),
        Column("t_from", "i64", "all rows from here are kept for it; null: it keeps none", "ns", True),
        Column("t_to", "i64", "to here, inclusive", "ns", True),
    ),
    key=("mark",),
)

RECORDER_TABLES = (MARKS,)
"""Told by the recorder; of rows with the same key the last counts."""

TOLD_TABLES = (*ENGINE_TABLES, *RECORDER_TABLES)
KEPT_TABLES = (*SIDE_TABLES, *RECORDER_TABLES)
"""Every table that is one file of a trace."""

PROGRAMS = Table(
    "programs",
    "Who watched: every program attached during the recording.",
    (
        Column("program", "i32", "program id"),
        Column("name", "str", "name"),
        Column("selection", "str", "what its rows are: all, sampled(1/n) or escalated(program)"),
        Column("source", "str", "source text; empty for the built-in recorder"),
        Column("hash", "str", "SHA-256 of what was attached; empty for the built-in recorder"),
        Column("slot", "i16", "bit of `by` in events: another program may have had it before or after", "", True),
        Column("hooks", "strs", "hooks it was attached to", "", True),
        Column("instructions", "i64", "limit per worker and epoch; null: none", "", True),
        Column("rows", "i64", "limit of rows it may emit, per worker and epoch; null: none", "", True),
        Column("attached", "i64", "device time from which it saw events", "ns", True),
        Column("detached", "i64", "device time from which it did not; null: it stayed", "ns", True),
    ),
    key=("program",),
)


@dataclass(frozen=True)
class Hook:
    """A point in the scheduler that the ABI names. `since`: its aux is a time, stored as since_ns."""

    id: int
    name: str
    aux: str
    meaning: str
    since: bool = False
    flags: tuple[tuple[int, str], ...] = ()


HOOKS = (
    Hook(1, "ready", "task that released the last dependency", "a task's last dependency was satisfied"),
    Hook(2, "assign", "target worker << 48 | queue depth after << 24 | capacity", "a task was put in a worker's queue"),
    Hook(3, "start", "t of ready, 0 when not known", "a worker begins a task", since=True),
    Hook(4, "complete", "t of start", "a worker has finished a task", since=True),
    Hook(
        5,
        "wait",
        "counter seen << 32 | wanted, relative to this iteration",
        "a worker begins to wait; once, not per poll",
    ),
    Hook(6, "resume", "t of wait", "the wait is over", since=True),
    Hook(7, "release", "counter after << 32 | wanted, relative to this iteration", "a dependency was counted up"),
    Hook(8, "send", "bytes", "data and signal for a peer have been issued"),
    Hook(9, "receive", "t of the wait for it", "a peer's data has arrived", since=True),
    Hook(10, "request", "slot << 32 | state", "a request changed state"),
    Hook(
        11,
        "step",
        "t of the step's begin",
        "an iteration begins or ends",
        since=True,
        flags=((1, "begins"), (2, "ends")),
    ),
    Hook(
        12,
        "pressure",
        "depth << 32 | threshold",
        "a queue crossed its threshold",
        flags=((1, "rises above"), (2, "falls below")),
    ),
    Hook(13, "epoch", "t of the epoch's begin", "a worker's epoch closed; for programs only", since=True),
)
HOOK_BY_NAME = {h.name: h for h in HOOKS}

HOOKS_TABLE = Table(
    "hooks",
    "The hook ABI.",
    (
        Column("hook", "i16", "hook id"),
        Column("name", "str", "name"),
        Column("aux", "str", "what aux (or since_ns) carries"),
        Column("meaning", "str", "when it fires"),
        Column("exported", "bool", "this engine fires it"),
    ),
    key=("hook",),
)

REQUEST_STATES = ("admitted", "prefill_chunk", "first_token", "token", "preempted", "resumed", "finished", "cancelled")
"""State of a `request` event, in the order of its numbers from 1."""

DEP_CLASSES = ("none", "data", "communication", "resource", "control")


def schema_hash() -> str:
    """SHA-256 over every declaration that a reader of a segment or trace depends on, in hex."""
    tables = [RING_ROW, INTERVALS, COVERAGE, *SIDE_TABLES]
    text = json.dumps(
        {
            "tables": {t.name: [(c.name, c.type) for c in t] for t in tables},
            "hooks": [(h.id, h.name, h.since) for h in HOOKS],
            "states": REQUEST_STATES,
        },
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()

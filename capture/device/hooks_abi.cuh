// Megascope hook ABI 1.0 and segment layout. Rendered from store/tables.py and capture/segment/ by `python -m megascope.capture.hooks`.
#pragma once
#include <stdint.h>

/* The 64-byte row of hook ABI v1, little-endian, as a program's context sees it. */
struct ms_row {
  uint64_t t;           /* 0: device time of the firing, ns */
  uint64_t seq;         /* 8: this worker's count of events, from 1; each number is dequeued once or lost once */
  uint64_t task;        /* 16: task generation: iteration << 32 | index */
  uint64_t aux;         /* 24: by hook: see `hooks` */
  uint32_t request;     /* 32: 0 none, 0xffffffff unknown, top bit: a request set, else a request generation */
  uint32_t step;        /* 36: iteration of the engine */
  uint32_t dep;         /* 40: dependency id, 0 none */
  uint32_t comm;        /* 44: comm generation, alike on every rank, 0 none */
  uint32_t tile;        /* 48: coordinates packed as `tile_fields` says; with flag range: how many tasks the row stands for */
  uint16_t task_class;  /* 52: key of `task_classes` */
  uint16_t worker;      /* 54: who fired it */
  uint16_t sm;          /* 56: multiprocessor */
  uint16_t peer;        /* 58: remote rank; 0xfffe all, 0xffff none */
  uint8_t hook;         /* 60: key of `hooks` */
  uint8_t dep_class;    /* 61: 0 none, 1 data, 2 communication, 3 resource, 4 control */
  uint8_t flags;        /* 62: bit 7 range; the rest by hook */
  uint8_t rank;         /* 63: this device in a run over several */
};

/* A row in the segment's event ring: the event row and who emitted it. */
struct ms_ring_row {
  uint64_t t;           /* 0: device time of the firing, ns */
  uint64_t seq;         /* 8: this worker's count of events, from 1; each number is dequeued once or lost once */
  uint64_t task;        /* 16: task generation: iteration << 32 | index */
  uint64_t aux;         /* 24: by hook: see `hooks` */
  uint32_t request;     /* 32: 0 none, 0xffffffff unknown, top bit: a request set, else a request generation */
  uint32_t step;        /* 36: iteration of the engine */
  uint32_t dep;         /* 40: dependency id, 0 none */
  uint32_t comm;        /* 44: comm generation, alike on every rank, 0 none */
  uint32_t tile;        /* 48: coordinates packed as `tile_fields` says; with flag range: how many tasks the row stands for */
  uint16_t task_class;  /* 52: key of `task_classes` */
  uint16_t worker;      /* 54: who fired it */
  uint16_t sm;          /* 56: multiprocessor */
  uint16_t peer;        /* 58: remote rank; 0xfffe all, 0xffff none */
  uint8_t hook;         /* 60: key of `hooks` */
  uint8_t dep_class;    /* 61: 0 none, 1 data, 2 communication, 3 resource, 4 control */
  uint8_t flags;        /* 62: bit 7 range; the rest by hook */
  uint8_t rank;         /* 63: this device in a run over several */
  uint32_t by;          /* 64: who emitted the row: bit 0 the recorder, bit i the program in slot i (see `programs`) */
};

#define MS_ABI_MAJOR 1
#define MS_ABI_MINOR 0
#define MS_HOOK_READY 1  /* a task's last dependency was satisfied; aux: task that released the last dependency */
#define MS_HOOK_ASSIGN 2  /* a task was put in a worker's queue; aux: target worker << 48 | queue depth after << 24 | capacity */
#define MS_HOOK_START 3  /* a worker begins a task; aux: t of ready, 0 when not known */
#define MS_HOOK_COMPLETE 4  /* a worker has finished a task; aux: t of start */
#define MS_HOOK_WAIT 5  /* a worker begins to wait; once, not per poll; aux: counter seen << 32 | wanted, relative to this iteration */
#define MS_HOOK_RESUME 6  /* the wait is over; aux: t of wait */
#define MS_HOOK_RELEASE 7  /* a dependency was counted up; aux: counter after << 32 | wanted, relative to this iteration */
#define MS_HOOK_SEND 8  /* data and signal for a peer have been issued; aux: bytes */
#define MS_HOOK_RECEIVE 9  /* a peer's data has arrived; aux: t of the wait for it */
#define MS_HOOK_REQUEST 10  /* a request changed state; aux: slot << 32 | state */
#define MS_HOOK_STEP 11  /* an iteration begins or ends; aux: t of the step's begin */
#define MS_STEP_BEGINS 1  /* flag of step: begins */
#define MS_STEP_ENDS 2  /* flag of step: ends */
#define MS_HOOK_PRESSURE 12  /* a queue crossed its threshold; aux: depth << 32 | threshold */
#define MS_PRESSURE_RISES 1  /* flag of pressure: rises above */
#define MS_PRESSURE_FALLS 2  /* flag of pressure: falls below */
#define MS_HOOK_EPOCH 13  /* a worker's epoch closed; for programs only; aux: t of the epoch's begin */
#define MS_DEP_NONE 0
#define MS_DEP_DATA 1
#define MS_DEP_COMMUNICATION 2
#define MS_DEP_RESOURCE 3
#define MS_DEP_CONTROL 4
#define MS_REQUEST_ADMITTED 1
#define MS_REQUEST_PREFILL_CHUNK 2
#define MS_REQUEST_FIRST_TOKEN 3
#define MS_REQUEST_TOKEN 4
#define MS_REQUEST_PREEMPTED 5
#define MS_REQUEST_RESUMED 6
#define MS_REQUEST_FINISHED 7
#define MS_REQUEST_CANCELLED 8
#define MS_FLAG_RANGE 0x80u  /* tile holds how many consecutive tasks the row stands for */
#define MS_REQUEST_NONE 0
#define MS_REQUEST_UNKNOWN 0xffffffffu
#define MS_REQUEST_SET 0x80000000u  /* request holds a set id */
#define MS_PEER_ALL 0xfffeu
#define MS_PEER_NONE 0xffffu
#define MS_PROGRAM_RECORDER 1  /* program id of the built-in recorder */

/* A block of the event ring: its header, then each column of ms_ring_row for all its rows. Column c begins
   at MS_BLOCK_HEADER + block_rows * MS_ROW_OFF_c. */
#define MS_BLOCK_HEADER 64  /* word 0 is the generation: 2k+1 while pass k writes it, 2k+2 */
#define MS_ROW_OFF_T 0
#define MS_ROW_OFF_SEQ 8
#define MS_ROW_OFF_TASK 16
#define MS_ROW_OFF_AUX 24
#define MS_ROW_OFF_REQUEST 32
#define MS_ROW_OFF_STEP 36
#define MS_ROW_OFF_DEP 40
#define MS_ROW_OFF_COMM 44
#define MS_ROW_OFF_TILE 48
#define MS_ROW_OFF_TASK_CLASS 52
#define MS_ROW_OFF_WORKER 54
#define MS_ROW_OFF_SM 56
#define MS_ROW_OFF_PEER 58
#define MS_ROW_OFF_HOOK 60
#define MS_ROW_OFF_DEP_CLASS 61
#define MS_ROW_OFF_FLAGS 62
#define MS_ROW_OFF_RANK 63
#define MS_ROW_OFF_BY 64

/* What the engine says of itself. */
#define MS_STATE_STARTING 1
#define MS_STATE_RUNNING 2
#define MS_STATE_ENDED 3
#define MS_STATE_FAILED 4

/* What happens to a row when the ring is full. */
#define MS_POLICY_DROP 0
#define MS_POLICY_OVERWRITE 1
#define MS_POLICY_WAIT 2

/* What device time is. */
#define MS_CLOCK_VIRTUAL 0
#define MS_CLOCK_GLOBALTIMER 1
#define MS_CLOCK_MONOTONIC 2

/* Words of the status page; written by the engine's host side alone. */
#define MS_STATUS_STATE 0
#define MS_STATUS_HEARTBEAT 1
#define MS_STATUS_T_NOW 2
#define MS_STATUS_STEP 3
#define MS_STATUS_HOST_BASE 4
#define MS_STATUS_HOST_RESERVED 5
#define MS_STATUS_HOST_HEAD 6
#define MS_STATUS_FIT_COUNT 7
#define MS_STATUS_FIT_FIRST 64

/* Byte offsets in the control page; written by the drainer alone. */
#define MS_CONTROL_LEASE_PID 0
#define MS_CONTROL_LEASE_START 8
#define MS_CONTROL_LEASE_SINCE 16
#define MS_CONTROL_MASK 64
#define MS_CONTROL_COMMIT 0x80u
#define MS_CONTROL_STOP 0x81u
#define MS_CONTROL_TAILS 0x1000u

/* Words of a monitor's line; written by that monitor alone. */
#define MS_CURSOR_HEAD 0
#define MS_CURSOR_SUMMARY_HEAD 1
#define MS_CURSOR_HEARTBEAT 2
#define MS_CURSOR_EPOCH 3
#define MS_CURSOR_RING_LOST 4
#define MS_CURSOR_STALE 5
#define MS_CURSOR_MASK 6
#define MS_CURSOR_ACK 7
#define MS_CURSOR_PROGRAMS 8
#define MS_CURSOR_FEEDBACK 9
#define MS_CURSOR_MAP_HEAD 10
#define MS_CURSOR_WORDS 32

/* Words of a worker's line. 0 to 7 by the worker, or by its monitor for it; 8 to 15 by its monitor. */
#define MS_WORKER_NOW_T 0
#define MS_WORKER_NOW_TASK 1
#define MS_WORKER_NOW_DEP 2
#define MS_WORKER_NOW_SEEN_WANTED 3
#define MS_WORKER_NOW_CHECK 4
#define MS_WORKER_FIRED 8
#define MS_WORKER_DEQUEUED 9
#define MS_WORKER_LOST 10
#define MS_WORKER_WORDS 16

/* Kinds of a summary record. */
#define MS_RECORD_INTERVAL 1
#define MS_RECORD_COVERAGE 2
#define MS_RECORD_MERGED 3

/* Words of a summary record: 0 to 6 in every kind, then by kind. */
#define MS_SUMMARY_STAMP 0
#define MS_SUMMARY_WHAT 1
#define MS_SUMMARY_EPOCH 2
#define MS_SUMMARY_T_BEGIN 3
#define MS_SUMMARY_T_END 4
#define MS_SUMMARY_SEQ_FROM 5
#define MS_SUMMARY_SEQ_TO 6
#define MS_SUMMARY_DEQUEUED 7
#define MS_SUMMARY_INTERVAL_LOST 8
#define MS_SUMMARY_UNCLAIMED 9
#define MS_SUMMARY_ELIGIBLE 7
#define MS_SUMMARY_OBSERVED 8
#define MS_SUMMARY_THROTTLED 9
#define MS_SUMMARY_LOST 10
#define MS_SUMMARY_FAULTED 11
#define MS_SUMMARY_EMITTED 12
#define MS_SUMMARY_WRITTEN 13
#define MS_SUMMARY_RING_LOST 14
#define MS_SUMMARY_EMIT_THROTTLED 15
#define MS_SUMMARY_WORDS 16

/* Byte offsets in the requests page. The first two are the attachers', the rest the drainer's. */
#define MS_REQUESTS_REQUEST 0
#define MS_REQUESTS_COMMIT 64
#define MS_REQUESTS_SEEN 0x80u
#define MS_REQUESTS_FEEDBACK_COMMIT 0xc0u
#define MS_REQUESTS_FEEDBACK 0x400u

/* What a request asks for. */
#define MS_OP_ATTACH 1
#define MS_OP_REPLACE 2
#define MS_OP_DETACH 3

/* What a slot is in. */
#define MS_SLOT_STATE_FREE 0
#define MS_SLOT_STATE_ATTACHED 1
#define MS_SLOT_STATE_LEAVING 2

/* Words of a slot's line; written by the engine alone. */
#define MS_SLOT_STATE 0
#define MS_SLOT_CHANGE 1
#define MS_SLOT_PROGRAM 2
#define MS_SLOT_OFFSET 3
#define MS_SLOT_LENGTH 4
#define MS_SLOT_IMAGE_CRC 5
#define MS_SLOT_HOOKS 6
#define MS_SLOT_INSTRUCTIONS 7
#define MS_SLOT_ROWS 8
#define MS_SLOT_SINCE 9
#define MS_SLOT_UNTIL 10
#define MS_SLOT_MEMORY 11
#define MS_SLOT_OBSERVED 12
#define MS_SLOT_EMITTED 13
#define MS_SLOT_MISSING 14
#define MS_SLOT_CHECK 15
#define MS_SLOT_WORDS 16

/* Words of the reply, behind the slots; written by the engine alone. */
#define MS_REPLY_CODE 1
#define MS_REPLY_PROGRAM 2
#define MS_REPLY_ARENA 3
#define MS_REPLY_ARENA_USED 4
#define MS_REPLY_TEXT_LENGTH 5
#define MS_REPLY_TEXT 8
#define MS_REPLY_NUMBER 0
#define MS_REPLY_WORDS 64

/* What became of a request. */
#define MS_CODE_DONE 0
#define MS_CODE_DAMAGED 1
#define MS_CODE_IMAGE 2
#define MS_CODE_REJECTED 3
#define MS_CODE_HOOK 4
#define MS_CODE_ARENA 5
#define MS_CODE_SLOT 6
#define MS_CODE_KIND 7
#define MS_CODE_SPENT 8
#define MS_CODE_FAILED 9

/* Words of a record in a map ring, before its entries. A record never wraps: fillers end a pass of the ring. */
#define MS_MAP_RECORD_WHAT 0
#define MS_MAP_RECORD_PROGRAM 1
#define MS_MAP_RECORD_WORKER 2
#define MS_MAP_RECORD_EPOCH 3
#define MS_MAP_RECORD_T_BEGIN 4
#define MS_MAP_RECORD_T_END 5
#define MS_MAP_RECORD_ELIGIBLE 6
#define MS_MAP_RECORD_OBSERVED 7
#define MS_MAP_RECORD_THROTTLED 8
#define MS_MAP_RECORD_LOST 9
#define MS_MAP_RECORD_FAULTED 10
#define MS_MAP_RECORD_REFUSED 11
#define MS_MAP_RECORD_ENTRIES 12
#define MS_MAP_RECORD_SUM 13
#define MS_MAP_RECORD_WORDS 14

/* Kinds of a record in a map ring. */
#define MS_MAP_RECORD_KIND_FILLER 0
#define MS_MAP_RECORD_KIND_AGGREGATE 1
#define MS_MAP_RECORD_KIND_STATE 2

#define MS_SUMMARY_CHUNK 16  /* summary records are freed in chunks of this many */
#define MS_SLOTS 32  /* lines of the slot table; slot s is bit s of `by` */
#define MS_MAP_CHUNKS 0x80u  /* a map ring is freed in so many pieces */
#define MS_MERGED_WORKERS 0xffffffffu  /* worker of a merged record */
#define MS_CLOCK_FITS 112  /* clock fits kept in the status page */

/* The header page; its last four bytes are the CRC-32 of those before. */
#define MS_HEADER_MAGIC 0
#define MS_HEADER_ABI_MAJOR 8
#define MS_HEADER_ABI_MINOR 12
#define MS_HEADER_FILE_BYTES 16
#define MS_HEADER_SCHEMA_HASH 24
#define MS_HEADER_ENGINE_PID 56
#define MS_HEADER_ENGINE_START 64
#define MS_HEADER_CREATED_NS 72
#define MS_HEADER_CLOCK 80
#define MS_HEADER_CLOCK_TICK_NS 84
#define MS_HEADER_EPOCH_NS 88
#define MS_HEADER_RANKS 96
#define MS_HEADER_WORKERS 100
#define MS_HEADER_MONITORS 104
#define MS_HEADER_POLICY 108
#define MS_HEADER_BLOCK_ROWS 112
#define MS_HEADER_BLOCKS 116
#define MS_HEADER_SUMMARY_ROWS 120
#define MS_HEADER_EXPORTED 124
#define MS_HEADER_SIDE_BYTES 0x80u
#define MS_HEADER_SIDE_ENTRIES 0x88u
#define MS_HEADER_RESERVED 0x8cu
#define MS_HEADER_HOST_BYTES 0x90u
#define MS_HEADER_NAME 0x98u
#define MS_HEADER_PROGRAM_SLOTS 0xd8u
#define MS_HEADER_TELEMETRY 0xdcu
#define MS_HEADER_IMAGE_BYTES 0xe0u
#define MS_HEADER_MAP_BYTES 0xe8u
#define MS_HEADER_ARENA_BYTES 0xf0u
#define MS_PAGE 0x1000u
#define MS_MAGIC "MEGASCOP"
#define MS_SCHEMA_HASH "c214c78906d188f9bcc2973e237a6a86fe53a3f4c5e0af1c12eb4741b4575f8e"

#if defined(__cplusplus) && !defined(__CUDACC_RTC__)
static_assert(__builtin_offsetof(ms_ring_row, t) == 0, "offset of t");
static_assert(__builtin_offsetof(ms_ring_row, seq) == 8, "offset of seq");
static_assert(__builtin_offsetof(ms_ring_row, task) == 16, "offset of task");
static_assert(__builtin_offsetof(ms_ring_row, aux) == 24, "offset of aux");
static_assert(__builtin_offsetof(ms_ring_row, request) == 32, "offset of request");
static_assert(__builtin_offsetof(ms_ring_row, step) == 36, "offset of step");
static_assert(__builtin_offsetof(ms_ring_row, dep) == 40, "offset of dep");
static_assert(__builtin_offsetof(ms_ring_row, comm) == 44, "offset of comm");
static_assert(__builtin_offsetof(ms_ring_row, tile) == 48, "offset of tile");
static_assert(__builtin_offsetof(ms_ring_row, task_class) == 52, "offset of task_class");
static_assert(__builtin_offsetof(ms_ring_row, worker) == 54, "offset of worker");
static_assert(__builtin_offsetof(ms_ring_row, sm) == 56, "offset of sm");
static_assert(__builtin_offsetof(ms_ring_row, peer) == 58, "offset of peer");
static_assert(__builtin_offsetof(ms_ring_row, hook) == 60, "offset of hook");
static_assert(__builtin_offsetof(ms_ring_row, dep_class) == 61, "offset of dep_class");
static_assert(__builtin_offsetof(ms_ring_row, flags) == 62, "offset of flags");
static_assert(__builtin_offsetof(ms_ring_row, rank) == 63, "offset of rank");
static_assert(__builtin_offsetof(ms_ring_row, by) == 64, "offset of by");
static_assert(sizeof(ms_row) == 64, "size of ms_row");
#endif

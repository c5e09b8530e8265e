/* Megascope hook ABI 1.0: a program's context. Rendered from store/tables.py and capture/segment/layout.py by `python -m megascope.capture.hooks`. */
#pragma once
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

/* The 64-byte row of hook ABI v1, little-endian, as a program's context sees it. */
struct megascope_event {
  __u64 t;              /* 0: device time of the firing, ns */
  __u64 seq;            /* 8: this worker's count of events, from 1; each number is dequeued once or lost once */
  __u64 task;           /* 16: task generation: iteration << 32 | index */
  __u64 aux;            /* 24: by hook: see `hooks` */
  __u32 request;        /* 32: 0 none, 0xffffffff unknown, top bit: a request set, else a request generation */
  __u32 step;           /* 36: iteration of the engine */
  __u32 dep;            /* 40: dependency id, 0 none */
  __u32 comm;           /* 44: comm generation, alike on every rank, 0 none */
  __u32 tile;           /* 48: coordinates packed as `tile_fields` says; with flag range: how many tasks the row stands for */
  __u16 task_class;     /* 52: key of `task_classes` */
  __u16 worker;         /* 54: who fired it */
  __u16 sm;             /* 56: multiprocessor */
  __u16 peer;           /* 58: remote rank; 0xfffe all, 0xffff none */
  __u8 hook;            /* 60: key of `hooks` */
  __u8 dep_class;       /* 61: 0 none, 1 data, 2 communication, 3 resource, 4 control */
  __u8 flags;           /* 62: bit 7 range; the rest by hook */
  __u8 rank;            /* 63: this device in a run over several */
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

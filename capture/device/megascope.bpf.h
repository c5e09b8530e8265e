/* Megascope hook ABI 1.0, for programs in eBPF C. Rendered from store/tables.py and capture/segment/ by `python -m megascope.capture.hooks`. */
#pragma once
typedef signed char __s8;
typedef unsigned char __u8;
typedef signed short __s16;
typedef unsigned short __u16;
typedef signed int __s32;
typedef unsigned int __u32;
typedef signed long long __s64;
typedef unsigned long long __u64;

/* Offsets are corrected when a program is loaded under another minor of the ABI (CO-RE). */
#ifdef __bpf__
#define MS_RELOCATED __attribute__((preserve_access_index))
#else
#define MS_RELOCATED
#endif

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
} MS_RELOCATED;

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

/* <linux/bpf.h> and <bpf/bpf_helpers.h> may be included too, before this header. */
/* Where a function runs: SEC("hook/complete"), SEC("hook/wait,resume"), SEC("pick"). */
#ifndef SEC
#define SEC(name) __attribute__((section(name), used))
#endif
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#ifndef __noinline
#define __noinline __attribute__((noinline))
#endif

/* A map: struct { __uint(type, …); __type(key, …); __type(value, …); __uint(max_entries, …); __uint(map_flags, …); }
   name SEC(".maps"). A constant that is set when the program is loaded (--set NAME=VALUE): volatile const. */
#ifndef __uint
#define __uint(name, val) int (*name)[val]
#define __type(name, val) __typeof__(val) *name
#endif

#ifndef __LINUX_BPF_H__
#define BPF_MAP_TYPE_HASH 1  /* any key → any value */
#define BPF_MAP_TYPE_ARRAY 2  /* __u32 index → any value; every index is always there */
#define BPF_F_RDONLY_PROG 0x80u  /* the program may not write it */
#define BPF_ANY 0  /* flags of bpf_map_update_elem: any key */
#define BPF_NOEXIST 1  /* only a new one */
#define BPF_EXIST 2  /* only an old one */
#endif
#define MS_MAP_TYPE_HIST 0x4d01u  /* any key → struct ms_hist; only through ms_hist_add */
#define MS_MAP_TYPE_STATS 0x4d02u  /* any key → struct ms_stats; only through ms_stats_add */
#define MS_MAP_TYPE_FEEDBACK 0x4d03u  /* __u32 index → struct ms_feedback; written by the host alone */
#define MS_F_SHARED 0x10000u  /* one for all workers of a rank; else each worker has its own */
#define MS_F_AGGREGATE 0x20000u  /* exported and reset at each epoch's end; hist and stats always are */
struct ms_stats {
  __u64 count, sum, min, max;
};
struct ms_hist {
  __u64 count, sum, min, max, buckets[976];
};
struct ms_feedback {
  __u64 value, epoch; /* the epoch that it was computed from; 0: none yet */
};

#ifndef __BPF_HELPERS__
/* the value of a key, or null; of a read-only or feedback map it depends on no order; map: hash, array,
   feedback */
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
/* set a key's value; flags 0 any, 1 only a new key, 2 only an old one; 0, or -22 other flags, -17 the key is
   there, -2 it is not, -7 the map is full or an array has no such index (counted as map_full); map: hash,
   array */
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
/* delete a key: 0, or -2 it is not there; pointers to values of the map die; map: hash */
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
/* t of the event, ns */
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
#endif
/* value[key] += n, from 0 for a new key; values are u64; returns 0 always, a full map is counted as map_full;
   map: hash, array */
static long (*const ms_map_add)(void *map, const void *key, __u64 n) = (void *)1001;
/* value[key] = min(value[key], n) unsigned, n for a new key; returns 0 always; map: hash */
static long (*const ms_map_min)(void *map, const void *key, __u64 n) = (void *)1002;
/* value[key] = max(value[key], n) unsigned, n for a new key; returns 0 always; map: hash, array */
static long (*const ms_map_max)(void *map, const void *key, __u64 n) = (void *)1003;
/* count n in the histogram of a key; returns 0 always, a full map is counted as map_full; map: hist */
static long (*const ms_hist_add)(void *map, const void *key, __u64 n) = (void *)1004;
/* count n in count, sum, min and max of a key; returns 0 always, a full map is counted as map_full; map:
   stats */
static long (*const ms_stats_add)(void *map, const void *key, __u64 n) = (void *)1005;
/* the value that a key of an aggregation had when this worker's last epoch closed, or null, as before the
   first close; map: hash, array, hist, stats */
static const void *(*const ms_map_closed)(void *map, const void *key) = (void *)1006;
/* export this event's row; once per event however often it is called; returns 0 always */
static long (*const ms_emit)(const struct megascope_event *event) = (void *)1007;

/* What the ABI has that the program is loaded under, which may be another minor than this header's. */
#ifndef bpf_core_field_exists
#define bpf_core_field_offset(field) __builtin_preserve_field_info(field, 0)
#define bpf_core_field_size(field) __builtin_preserve_field_info(field, 1)
#define bpf_core_field_exists(field) __builtin_preserve_field_info(field, 2)
#define bpf_core_type_exists(type) __builtin_preserve_type_info(*(__typeof__(type) *)0, 0)
#define bpf_core_type_size(type) __builtin_preserve_type_info(*(__typeof__(type) *)0, 1)
#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Byte layouts shared by the BPF programs and the agent.
 *
 * The agent reads them from the BTF of the compiled objects, so nothing is written twice: a field added here is a numpy
 * field there. All times are CLOCK_MONOTONIC nanoseconds. pid is the process (kernel: tgid), tid the thread (kernel:
 * pid).
 */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef signed int s32;
typedef signed long long s64;

#define COMM_BYTES 16
#define STATES 8
#define MAX_PROCESSES 1024 /* eight ranks with a hundred workers each; a power of two */
#define SLOT_SHIFT 54	   /* where the slot begins in keys that have one: its ten bits are the upper ones */
#define MAX_STREAMS 16	  /* per process; torch uses 1-5 */
#define CHECKPOINTS 8
#define HISTOGRAM_BUCKETS 256
#define OP_SET_WORDS 4 /* 256 operation ids */
#define PYTHON_FRAMES 128
#define PYTHON_FILE_BYTES 512
#define PYTHON_NAME_BYTES 256
#define PYTHON_TABLE_BYTES 6144 /* of 700 lines of code; a longer one is read from memory by the agent */
/* whole pages: at least 16 KB, which held each of 400 stacks of a PyTorch loop; 8 KB held 35% */
#define STACK_COPY_BYTES 20480
#define MACHINE_REGISTERS 33   /* by DWARF number; x86-64 uses 17 */
#define PROBED_FRAMES 2
#define DECIDING_WORDS 60 /* of one step: 30 frames of C++ need 40 */
#define DECIDING_STEPS 16 /* one for each place where chains of one place diverge, and for each 60 words */

/* What a thread is doing. The order of RUN..STOPPED is the order of state_ns[]. */
enum thread_state {
	STATE_INIT = 0, /* known since creation only; `hint` says what it seemed to do */
	STATE_RUN,
	STATE_RUNQ,
	STATE_THROTTLED,
	STATE_YIELDED,
	STATE_SLEEP,
	STATE_IO,
	STATE_UNINTERRUPTIBLE,
	STATE_STOPPED,
};

enum waker_kind {
	WAKER_NONE = 0,
	WAKER_THREAD,
	WAKER_KWORKER, /* a kernel worker: the chain ends here */
	WAKER_TIMER,
	WAKER_NETWORK,
	WAKER_BLOCK,
	WAKER_INTERRUPT,
};

/*
 * Counters of what was dropped, repaired, or could not be determined. Names are shown to users as they are, in lower
 * case.
 */
enum drop {
	DROP_NONE = 0,
	DROP_CALL_RECORDS_RING_FULL,
	DROP_SYNC_INTERVALS_RING_FULL,
	DROP_OFFCPU_RING_FULL,
	DROP_HOST_EVENTS_RING_FULL,
	DROP_LIFECYCLE_RING_FULL,
	DROP_OFFCPU_BUFFER_FULL,     /* more intervals than a thread's buffer holds between two readings */
	DROP_CELLS_FULL,	     /* caller folded to 0 */
	DROP_CELLS_EXHAUSTED,	     /* not even the cell of caller 0: the call is not counted */
	DROP_KERNEL_CELLS_FULL,
	DROP_PROCESS_SLOTS_FULL,
	DROP_THREAD_STORAGE_FAILED,
	DROP_STREAMS_FULL,	     /* the call's stream has no place in the table */
	DROP_EVENT_POSITION_UNKNOWN, /* waited for an event whose record was not seen */
	DROP_FRAME_STALE,	     /* open call popped: longjmp or exception crossed it */
	DROP_FRAME_OVERFLOW,
	DROP_RETURN_UNMATCHED,
	DROP_SNAPSHOT_TORN,	     /* thread-state times changed in each of the retries */
	DROP_SNAPSHOT_NOT_RUNNING,   /* own state was not `run`, and stayed so */
	DROP_SWITCH_IN_MISSED,	     /* repaired at the thread's next call or switch-out */
	DROP_SWITCH_OUT_MISSED,
	DROP_SWITCH_COUNT_MISMATCH,  /* switches seen differ from nvcsw + nivcsw */
	DROP_WAKEUP_MISSED,
	DROP_CLOCK_NEGATIVE,
	DROP_REPAIRED_NS,	     /* time that repairs moved to the state it belongs to */
	DROP_CULPRITS_FULL,
	DROP_CULPRIT_UNKNOWN_NS,
	DROP_CULPRIT_NEGATIVE,
	DROP_THROTTLE_CLOCK_ODD,     /* whole wait taken as throttled */
	DROP_SYNC_INTERVAL_RACE,
	DROP_USER_READ_FAILED,	     /* user memory (return address, arguments) could not be read */
	DROP_BLOCK_IO_UNMATCHED,
	DROP_HOST_START_UNMATCHED,
	DROP_COMMUNICATORS_FULL,
	DROP_COMMUNICATOR_RING_FULL,
	DROP_COMMUNICATOR_HANDLE_UNKNOWN, /* created, but its handle was not there at the return */
	DROP_DATATYPE_UNKNOWN,
	DROP_LIBRARY_UNREADABLE,     /* counted by the agent */
	DROP_STACKS_RING_FULL,	     /* the call's record has no stack */
	DROP_PYTHON_CODE_RING_FULL,
	DROP_PYTHON_CODE_UNREADABLE, /* these three are counted by the agent */
	DROP_STACK_PARTS_MISSING,
	DROP_STACKS_NOT_RESOLVED,
	DROP_KERNEL_NAMES_RING_FULL,
	DROP_KERNEL_HANDLES_FULL,
	DROP_KERNEL_NAMES_NOT_RESOLVED, /* counted by the agent */
	DROP_SAMPLES_RING_FULL,
	DROP_SAMPLE_STACK_NOT_COPIED,
	DROP_GPU_SAMPLES_MISSED, /* counted by the agent */
	DROP_ALLOCATIONS_FULL,	     /* allocations in use that are not remembered */
	DROP_ALLOCATION_SITES_FULL,  /* caller folded to 0 */
	DROP_ALLOCATIONS_UNPAIRED,   /* other allocations and frees that do not count in the memory in use */
	DROP_STEPS_RING_FULL,
	DROP_MARKS_RING_FULL,
	DROP_SEQUENCE_RING_FULL,
	DROP_RECORDS_NOT_UNDERSTOOD, /* from here on all are counted by the agent */
	DROP_PARTS_NOT_UNDERSTOOD,
	DROP_LOOP_STOOD_STILL_NS,
	DROP_MEMORY_FILES_GIVEN_UP,
	DROP_PYTHON_STACKS_GIVEN_UP,
	DROP_LIBRARY_SEARCHES_GIVEN_UP,
	DROP_LIBRARY_FILES_GIVEN_UP,
	DROP_NATIVE_FILES_GIVEN_UP,
	DROP_NATIVE_STACKS_GIVEN_UP,
	DROP_ROOT_FILES_GIVEN_UP,
	DROP_HALTS_NOT_READ,
	DROP_INCIDENT_COMMANDS_QUEUE_FULL, /* of --on-incident, as those that follow */
	DROP_INCIDENT_COMMANDS_NOT_RUN,
	DROP_INCIDENT_COMMANDS_FAILED,
	DROP_INCIDENT_COMMANDS_TIMED_OUT,
	DROP_COUNT,
};

enum call_flag {
	CALL_INCOMPLETE = 1 << 0,    /* a missed or torn event affects this call's times */
	CALL_UNFINISHED = 1 << 1,    /* still open when its thread or the trace ended */
	CALL_SAMPLED = 1 << 3,	     /* recorded as the 1-in-N sample */
	CALL_RARE = 1 << 4,	     /* recorded because the operation is rare */
	CALL_SLOW = 1 << 5,	     /* recorded because it passed its threshold */
	CALL_WAITED = 1 << 6,	     /* slept or was blocked inside */
	CALL_FAILED = 1 << 7,	     /* recorded because it is an allocation that failed */
};

/* ring `calls`: one recorded call of a traced operation */
struct call_record {
	u64 start_ns;
	u64 duration_ns;
	u64 state_ns[STATES];
	s64 residual_ns; /* duration minus the sum of state_ns */
	u64 caller;	 /* return address at entry */
	u64 function;	 /* launches: the kernel's handle; NCCL: communicator << 40 | sequence; else 0 */
	u64 size_bytes;
	u64 handle;
	u64 extra; /* NCCL: nccl_calls.h */
	u64 stream;
	u64 cgroup_id;
	u64 python_stack; /* hash of a python_stack_record; 0 = none was taken */
	u64 native_stack; /* key of a native_stack_record, or'ed with NATIVE_MAYBE_OTHER; 0 = none was taken */
	u64 waker_ns; /* time of the last wake-up inside the call; 0 = none */
	u64 culprit_ns;
	u32 pid;
	u32 tid;
	u32 waker_tid;
	u32 culprit_pid; /* ran longest during one wait of this call */
	u32 culprit_tid;
	s32 ret;
	s32 device; /* -1 unknown */
	u32 switches;
	u32 preemptions;
	u32 cpu;
	u16 op;
	u16 process_slot;
	u8 flags; /* enum call_flag */
	u8 waker_kind;
	u8 pad[2];
	char comm[COMM_BYTES];
};

enum python_instruction {
	PYTHON_BYTES = 0, /* the frame holds a byte offset (3.8, 3.9) */
	PYTHON_UNITS,	  /* an index of two-byte units (3.10) */
	PYTHON_POINTER,	  /* an address (3.11 and later) */
};

/*
 * map `python_layouts`, by process slot: where this interpreter keeps what a walk needs; the agent writes it once it
 * has proven it. Offsets are in bytes; `runtime` 0: the process has no interpreter that can be read.
 */
struct python_layout {
	u64 runtime;   /* &_PyRuntime */
	u64 none;      /* &_Py_NoneStruct: what an entry frame has instead of code */
	u64 code_type; /* &PyCode_Type */
	s64 thread_bias; /* pthread_self() minus the thread pointer */
	u64 text_begin; /* of the interpreter's own code */
	u64 text_end;
	u32 interpreters;
	u32 interpreter_next;
	u32 interpreter_threads;
	u32 thread_previous;
	u32 thread_next;
	u32 thread_interpreter;
	u32 thread_id;
	u32 thread_frame;
	u32 cframe_frame;
	u32 frame_previous;
	u32 frame_code;
	u32 frame_instruction;
	u32 frame_owner;
	u32 frame_copy;
	u32 code_filename;
	u32 code_name; /* the qualified one where there is one */
	u32 code_line_table;
	u32 code_first_line;
	u32 code_instructions;
	u32 code_copies;
	u32 header_bytes; /* of every object */
	u32 bytes_size;
	u32 bytes_data;
	u32 string_state;
	u32 string_length;
	u32 string_ascii_data;
	u32 string_wide_data;
	u32 string_state_shift;
	u32 interpreter_collecting; /* whether it is collecting garbage; 0: not known */
	u32 interpreter_freed;	    /* how many code objects it has freed; 0: not known */
	u8 instruction; /* enum python_instruction */
	u8 has_cframe;
	u8 has_owner;
	u8 has_copies;
	u8 owner_skipped; /* frames with an owner from here on belong to no Python function */
	u8 has_half_word; /* of one word of a code object only the lower half is constant: python_code.h */
	u8 is_key_short;  /* no version number in code objects: the line table's beginning is mixed into the key */
	u8 pad[5];
};

/* number of code objects freed by the program in a slot since its interpreter is watched: freed_code.bpf.c */
struct freed_code {
	u64 image; /* image_of the watched program; nothing is counted for any other */
	u64 count;
};

/* one frame: innermost first */
struct python_frame {
	u64 code; /* address of the code object */
	u64 key;  /* hash of its content: addresses are reused */
	s32 instruction; /* byte offset in the code; negative: not started */
	s32 first_line;
};

enum python_flag {
	PYTHON_CUT = 1 << 0,	    /* the stack has more frames than the record holds */
	PYTHON_UNREADABLE = 1 << 1, /* memory could not be read; the frames so far are right */
	PYTHON_NOT_CODE = 1 << 2,   /* something that should be a code object was none; the frames so far are right */
};

/* ring `python_stacks`: a stack not seen before */
struct python_stack_record {
	u64 hash;
	u32 pid;
	u32 tid;
	u16 process_slot;
	u16 count;
	u8 flags; /* enum python_flag */
	u8 pad[3];
	struct python_frame frame[PYTHON_FRAMES];
};

enum python_code_flag {
	PYTHON_CODE_UNREADABLE = 1 << 0, /* a string or the table was not in memory: the agent has to request it */
};

/* ring `python_code`: a code object not seen before; strings are raw, as their state says */
struct python_code_record {
	u64 key;
	u64 code;
	u64 file_length; /* characters */
	u64 name_length;
	u64 table_bytes;
	u32 file_state;
	u32 name_state;
	u32 pid;
	s32 first_line;
	u16 process_slot;
	u8 flags; /* enum python_code_flag */
	u8 pad[5];
	u8 file[PYTHON_FILE_BYTES];
	u8 name[PYTHON_NAME_BYTES];
	u8 table[PYTHON_TABLE_BYTES]; /* may be longer: then the agent has to request it */
};

/* beside a key: the copy was made for another call, whose chain of calls may have been different */
#define NATIVE_MAYBE_OTHER (1ULL << 63)
/* instead of a key: the interpreter's own code ran, in which a native stack ends; nothing was copied */
#define NATIVE_IN_INTERPRETER 1ULL
/* instead: at a function boundary, nothing else decides the chain */
#define NATIVE_DECIDED NATIVE_MAYBE_OTHER

enum deciding_word {
	DECIDING_INDEX = 0xfff,		     /* which word, from the stack pointer on */
	DECIDING_RELATIVE = 1 << 12,	     /* an address on the stack: its distance from the stack pointer counts */
	DECIDING_FRAME_POINTER = 1 << 13, /* not a word: the frame pointer's distance from the stack pointer */
};

/*
 * The agent's answer to a copy: two stacks with the same key can differ only in these words. Their values are mixed
 * into the key one after another, up to the first that differs from the copy's: from there on the frames are different,
 * and their words lie elsewhere.
 */
struct deciding_words {
	u64 last; /* the key with all of them mixed in, if nothing else decides the copy's chain; else 0 */
	u32 count;
	u16 word[DECIDING_WORDS]; /* enum deciding_word */
	u16 seen[DECIDING_WORDS]; /* of the copy: the low bits of the key with this word mixed in */
};

/* ring `native_stacks`: registers and the top of the stack when a call returned, or at a sample */
struct native_stack_record {
	u64 key;
	u64 registers[MACHINE_REGISTERS];
	u64 stack_vaddr; /* the page that holds the stack pointer */
	/* stack pointer at entry of open probed calls, whose return address is hidden; 0: none */
	u64 probed_sp[PROBED_FRAMES];
	u64 probed_caller[PROBED_FRAMES];
	u32 pid;
	u32 tid;
	u32 stack_bytes; /* copied, from stack_vaddr upwards */
	u16 process_slot;
	u8 is_pc_exact; /* a sample: the instruction that was running, not one to return to */
	u8 has_python; /* a Python stack was taken with it */
	u8 stack[STACK_COPY_BYTES];
};

enum sample_flag {
	SAMPLE_COLLECTING = 1 << 0, /* the thread was collecting its interpreter's garbage */
};

/*
 * ring `samples`: a thread that was running outside traced calls, at a tick of its CPU's sampling clock; or one that
 * slept when a call of another thread returned (main_thread.h)
 */
struct sample_record {
	u64 time_ns;
	u64 python_stack; /* hash of a python_stack_record; 0 = none was taken */
	u64 native_stack; /* key of a native_stack_record, NATIVE_IN_INTERPRETER; 0 = none was taken */
	u32 pid;
	u32 tid;
	u32 cpu;
	u16 process_slot;
	u8 flags; /* enum sample_flag */
	u8 state; /* enum thread_state */
	char comm[COMM_BYTES];
};

/* what the task iterator `find_parked` writes for each thread that is sleeping outside traced calls */
struct parked_thread {
	u64 now_ns;
	u64 switches; /* nvcsw + nivcsw: while they stay the same, it is the same sleep */
	u64 thread_pointer;
	u64 hits; /* probed entries so far */
	u64 python_stack; /* when it went to sleep; 0: it has no frames, or was not sampled */
	u32 pid;
	u32 tid;
	u16 process_slot;
	u8 state;
	u8 is_looked_at; /* when it went to sleep */
	u8 pad[4];
	char comm[COMM_BYTES];
};

enum sync_interval_flag {
	SYNC_INTERVAL_IDLE_OTHER_THREAD = 1 << 0, /* first enqueue by another thread than the last sync: no idle time */
	SYNC_INTERVAL_LAUNCH_OTHER_THREAD = 1 << 1, /* sync by another thread than the first enqueue: no time between */
	SYNC_INTERVAL_WOKEN = 1 << 2,	       /* slept in the sync: the GPU was done at its last wake-up */
	SYNC_INTERVAL_PARTIAL = 1 << 3,	       /* other streams had uncovered work */
	SYNC_INTERVAL_INCOMPLETE = 1 << 4,
	SYNC_INTERVAL_FIRST_UNKNOWN = 1 << 5,  /* an enqueue came as the last interval was closed; counted from that */
	SYNC_INTERVAL_PAGEABLE_COPY = 1 << 6,  /* ended by an asynchronous copy that waited: host memory is pageable */
	SYNC_INTERVAL_BEFORE_COPY = 1 << 7,    /* that copy was to the GPU: it waited for earlier work, then copied */
};

/* What is known of the host memory at an end of a copy: `handle` of its record. */
enum host_memory {
	HOST_MEMORY_UNKNOWN = 0,
	HOST_MEMORY_PINNED,	      /* inside a block in use that was seen pinned */
	HOST_MEMORY_PAGEABLE,	      /* in none, and everything that the program has pinned was seen */
	HOST_MEMORY_SEEMS_PAGEABLE, /* not known; an asynchronous copy waited, as with pageable memory only */
};

/* ring `sync_intervals`: one sync interval of a stream (process, device, stream) */
struct sync_interval_record {
	u64 begin_ns;  /* return of the previous sync; 0 = none before */
	u64 first_ns;  /* first enqueue after that */
	u64 sync_ns;  /* entry of this sync */
	u64 woken_ns;  /* when the GPU was done, where SYNC_INTERVAL_WOKEN */
	u64 return_ns; /* return of this sync */
	u64 last_off_ns; /* the thread's last time off the CPU in the sync; preemptions right after it are part of it */
	u64 last_on_ns;
	u64 away_ns; /* as last_off_ns, if a yielding thread had not checked the GPU in its short runs */
	u64 stream;
	u64 launches;
	u64 size_bytes;
	u64 copied_bytes; /* SYNC_INTERVAL_BEFORE_COPY: what the copy copied when its wait was over */
	u64 copy_ns_per_mib; /* at least this, from copies of the stream that had nothing to wait for; 0: none */
	u64 op_set[OP_SET_WORDS];
	u64 graph; /* last graph launched */
	u64 caller;
	u64 step; /* launches per checkpoint */
	u64 checkpoint_ns[CHECKPOINTS];
	u64 idle_state_ns[STATES];   /* GPU idle: of the thread that synced before, if it enqueued first */
	u64 launch_state_ns[STATES]; /* first enqueue to sync: of that thread, if it syncs */
	u64 sync_state_ns[STATES];   /* sync entry to return: of the syncing thread */
	u32 pid;
	u32 begin_tid;
	u32 first_tid;
	u32 sync_tid;
	s32 device;
	u16 op;
	u16 process_slot;
	u16 stream_slot;
	u8 flags; /* enum sync_interval_flag */
	u8 last_off_state;
	u32 are_enqueues_unseen; /* first_ns is not known and equals sync_ns: host's part first, then the wait */
};

/* What a call that waited for the GPU was waiting for. */
enum blocked_kind {
	BLOCKED_SYNC = 0, /* a synchronization or a blocking copy */
	BLOCKED_COPY,	  /* an asynchronous copy that waited */
	BLOCKED_LAUNCH,	  /* room in the launch queue */
	BLOCKED_ALLOC,	  /* an allocation or free that synchronizes */
	BLOCKED_KINDS,
};

/* ring `marks`: a call that had waited for the GPU has returned; positions of a stream as in streams.h */
struct mark_record {
	u64 time_ns;
	u64 waited_ns; /* in calls that waited for the stream since its previous mark */
	u64 position;  /* up to which the stream was done; 0: as far as the depth of the full queue says */
	u64 queued;    /* what had been enqueued by then */
	u64 outstanding; /* of that, what no sync has covered */
	u64 stream;
	u32 pid;
	s32 device; /* -1: not known */
	u16 process_slot;
	u8 kind; /* enum blocked_kind */
	u8 pad[5];
};

/* ring `steps`: from one call of the step marker to the next; host_state_ns and blocked_state_ns add up to it */
struct step_record {
	u64 begin_ns;
	u64 end_ns; /* entry of the marker's call */
	u64 function; /* of the marker */
	u64 caller;
	u64 generation; /* of the marker */
	u64 stream; /* the one with the most launches */
	u64 launches;
	u64 copies;
	u64 collectives;
	u64 syncs;
	u64 to_gpu_bytes;
	u64 to_host_bytes;
	u64 host_state_ns[STATES];    /* marker's thread, outside calls that waited for the GPU */
	u64 blocked_state_ns[STATES]; /* inside them */
	u64 blocked_ns[BLOCKED_KINDS];
	u64 shared_ns[BLOCKED_KINDS]; /* of other threads of the process, while its own slept outside calls */
	u32 pid;
	u32 tid;
	s32 device; /* -1: not known */
	u16 op;
	u16 process_slot;
	u8 flags; /* enum sync_interval_flag: SYNC_INTERVAL_INCOMPLETE */
	u8 is_synced; /* the stream was done at some moment of it, and the program knew */
	u8 is_queue_unknown; /* whether launches waited for room or were slow by themselves is not known */
	u8 pad[5];
};

/* ring `sequence`: one enqueue or sync of a process whose step is being searched, in the order of returns */
struct sequence_record {
	u64 start_ns;
	u64 duration_ns; /* 0: its return is not seen */
	u64 function;	 /* kernel, or cudaMemcpyKind; else 0 */
	u64 caller;
	u64 stream;
	u64 size_bytes;
	u32 pid;
	u32 tid;
	u16 op;
	u16 process_slot;
	u32 pad;
};

/* In place of a futex, a sleep in another system call: below LOWEST_FUTEX, where no program maps a page. */
#define LOWEST_FUTEX 4096
#define MOST_SYSCALLS 1024
#define OTHER_CALL(number) (2 * (u64)(number) + 2)

/* ring `offcpu`: one interval off the CPU of a tracked thread */
struct offcpu_record {
	u64 start_ns;
	u64 end_ns;   /* switch-in */
	u64 woken_ns; /* 0: never slept; else the wake-up that ended the sleep: [woken, end] was the run queue */
	u64 culprit_ns;
	u64 futex; /* address that it slept at; below LOWEST_FUTEX: OTHER_CALL; 0: in no call */
	u64 python_stack; /* when it went to sleep; 0: not sampled */
	u32 pid;
	u32 tid;
	u32 culprit_pid;
	u32 culprit_tid;
	u32 waker_tid;
	u16 process_slot;
	u16 cpu;
	u8 state; /* enum thread_state at the switch-out */
	u8 waker_kind;
	u16 call_op; /* of the traced call that it was in; 0: none */
	u32 waker_pid;
	char comm[COMM_BYTES];
	char culprit_comm[COMM_BYTES];
};

enum lifecycle_kind {
	LIFECYCLE_FORK = 1,
	LIFECYCLE_EXEC,
	LIFECYCLE_EXIT,	 /* the whole process */
	LIFECYCLE_ADMIT, /* traced since its first traced call; without a slot if none was left */
	LIFECYCLE_OOM_KILL,
	LIFECYCLE_STOP_SIGNAL,
};

/* Whose memory limit was reached. */
enum memory_limit {
	LIMIT_UNKNOWN = 0,
	LIMIT_HOST,
	LIMIT_CGROUP,
};

/*
 * ring `lifecycle`: never sampled.
 *
 * oom: pid is the process that requested memory, other_pid the killed one, and cgroup, start, slot, size, and comm are
 * those of the killed one (a kernel whose mark_victim has only the pid leaves start, size, comm, and cgroup empty).
 *
 * signal: comm is the sender's.
 */
struct lifecycle_record {
	u64 time_ns;
	u64 cgroup_id;
	u64 start_boottime_ns; /* of the process (CLOCK_BOOTTIME), as /proc/PID/stat shows it; fork: of the child */
	u64 size_bytes;	       /* oom: resident memory, as exact as the kernel's own message */
	u32 pid;
	u32 tid;
	u32 other_pid; /* fork: the child; signal: the sender; oom: the killed process */
	s32 code;      /* exit code (as wait(2) has it), signal number */
	u16 process_slot; /* 0xffff: not traced; fork: the child's */
	u8 kind;
	u8 short_of; /* oom: enum memory_limit */
	u8 pad[4];
	char comm[COMM_BYTES];
};

/* map `communicators`: what is known of one NCCL communicator of a traced process */
struct communicator {
	u64 hash; /* equal on all ranks; 0: unknown */
	u64 process_start_ns;
	u64 collectives; /* entered so far */
	u64 last_ns;	 /* entry of the latest of them; 0: none, or not known */
	u64 last_bytes;
	u64 last_extra;	 /* as `extra` of its record */
	u32 last_op;
	u32 last_tid;
	u32 number;	 /* its number in the recording; 24 bits */
	u32 children;	 /* children created from it so far */
	s32 rank;	 /* -1: unknown */
	s32 nranks;
	u32 is_whole; /* its creation was seen: `collectives` are all */
	u32 pad;
};

enum communicator_kind {
	COMMUNICATOR_MADE = 1,
	COMMUNICATOR_FOUND, /* in use, created before tracing began */
	COMMUNICATOR_RANKED, /* ncclCommUserRank or ncclCommCount returned its rank or size */
	COMMUNICATOR_ENDED,
	COMMUNICATOR_LEFT, /* this rank of the parent takes no part in what a split created */
};

/* ring `nccl`: never sampled */
struct communicator_record {
	u64 time_ns; /* entry of the call */
	u64 handle;  /* 0: unknown */
	u64 hash;    /* 0: unknown */
	u64 collectives; /* ended: how many there were */
	u64 last_ns;	 /* ended: the latest of these, as `struct communicator` has it */
	u64 last_bytes;
	u64 last_extra;
	u32 last_op;
	u32 last_tid;
	u32 pid;
	u32 tid;
	u32 number; /* 0: none */
	u32 parent; /* number; 0: none */
	u32 nth_child; /* of its parent */
	s32 rank;      /* -1: unknown */
	s32 nranks;
	s32 color;
	s32 key;
	u16 process_slot;
	u8 kind;
	u8 call; /* which of ops.COMMUNICATOR_CALLS */
	u32 excluded; /* shrink: ranks of the parent that are left out */
	u32 pad;
};

enum host_kind {
	HOST_BLOCK_READ = 1,
	HOST_BLOCK_WRITE,
	HOST_BLOCK_DISCARD,
	HOST_BLOCK_FLUSH,
	HOST_DIRECT_RECLAIM,
	HOST_COMPACTION,
	HOST_TCP_RETRANSMIT,
	HOST_NET_SEND,
	HOST_NET_RECEIVE,
	HOST_LATE_TIMER,
	HOST_KINDS,
};

enum host_flag {
	HOST_ISSUER_IS_KTHREAD = 1 << 0, /* block: issued by a kernel thread (writeback, journal), not by the cause */
	HOST_IN_PAGE_FAULT = 1 << 1,	 /* block: read because of a fault in user mode */
	HOST_MEMCG_LIMIT = 1 << 2,	 /* reclaim: a memory cgroup's limit, not the host's memory */
	HOST_ONE_OF_MANY = 1 << 3,	 /* block: of HOST_MANY that others waited for in the queue, not in the GPU */
};

#define HOST_MANY 16

/* ring `host`: block I/O, reclaim, faults, network, late timers */
struct host_record {
	u64 start_ns;
	u64 duration_ns; /* 0: a point in time */
	u64 size_bytes;
	u64 cgroup_id;
	u64 arg0; /* block: sector; sockets: ports (source << 16 | destination), 0: none; reclaim: order; timer: CPU */
	u64 arg1; /* block: queue time ns; tcp: state | segments << 16; send, receive: family | calls << 16 */
	u8 address[32]; /* sockets: source, destination; v4 mapped into v6 */
	u32 pid;
	u32 tid;
	u32 device; /* block: dev_t */
	u16 process_slot; /* 0xffff: not traced */
	u8 kind;
	u8 flags; /* enum host_flag */
	char comm[COMM_BYTES];
};

/* map `host_totals`: exact sums per host_kind, recorded or not */
struct host_total {
	u64 traced_count;
	u64 traced_bytes;
	u64 traced_ns;
	u64 other_count;
	u64 other_bytes;
	u64 other_ns;
};

/* map `cells`: exact sums of one (process, operation, caller); the first 64 bytes are what most calls need */
struct cell {
	u64 key; /* as in `cell_keys` */
	u64 caller;
	u64 count; /* calls returned */
	u64 sum_ns;
	u64 max_ns;
	u64 threshold_ns; /* written by the agent; record a call of at least this duration */
	u64 sample;	  /* written by the agent; record each N-th call; 0 = none */
	u64 rare_until;	  /* written by the agent; record each call before this one; see NEW_CELL_RECORDS */
	u64 recorded;
	u64 errors; /* of the calls returned, with a return code that is not 0 */
	u64 size_bytes;
	u64 nested;	 /* entered inside another traced call, not in count */
	s64 residual_ns; /* sum_ns minus the thread-state times */
	u64 state_ns[STATES]; /* RUN is not kept: it is the rest of sum_ns */
	u32 histogram[HISTOGRAM_BUCKETS]; /* modulo 2^32: the agent reads often enough */
	u64 host_to_gpu_bytes; /* of copies from host memory; what a copy inside a GPU moves is in neither */
	u64 gpu_to_host_bytes;
	u64 blocked_ns; /* of asynchronous copies that waited, because their host memory is pageable */
};

/* map `kernels`: launches of one kernel function by one caller in a process; `function` 0: being claimed */
struct kernel_cell {
	u64 key; /* slot << SLOT_SHIFT | valid << 53 | 53 bits of a hash of the three below */
	u64 count;
	u64 function;
	u64 caller;	/* return address at entry */
	u64 generation; /* of `function` where it is a handle, see kernel_handle */
};

/*
 * map `kernel_handles`: a CUfunction or CUkernel whose name is known. Handles are reused after their module is
 * unloaded.
 */
struct kernel_handle {
	u64 key;	/* slot << SLOT_SHIFT | valid << 53 | handle & (2^53 - 1) */
	u64 generation; /* number of the kernel with this handle: 1 and up; 0 if no name was seen */
	u64 name_hash;	/* 0: not named by name */
	u64 source;	/* the host address or handle that it was made from; 0: not known */
	u64 told_ns;
};

#define KERNEL_NAME_BYTES 256

/* ring `kernel_names`: never sampled */
struct kernel_name_record {
	u64 time_ns; /* of the return: no launch of this handle came before */
	u64 handle;
	u64 source;
	u64 generation;
	u32 pid;
	u16 process_slot;
	u8 role;   /* KernelNameRole of ops.py */
	u8 is_cut; /* the name may be longer */
	char name[KERNEL_NAME_BYTES];
};

/* map `allocations`: GPU memory, or memory pinned for it, that is in use */
struct allocation_key {
	u64 address; /* or the handle of physical memory */
	u64 owner;   /* slot << SLOT_SHIFT | enum address_space << 48 | execs of the process */
};

enum address_space {
	SPACE_POINTERS = 0,
	SPACE_HANDLES, /* of physical memory (cuMemCreate) */
	SPACE_MAPPINGS, /* addresses that map physical memory (cuMemMap) */
};

struct allocation {
	u64 bytes;
	u64 since_ns; /* when the call that allocated it began; with the address, this is its identity */
	u64 handle;   /* of a mapping: the physical memory */
	u32 site;     /* index in `allocation_sites` */
	u32 holds;    /* of physical memory: its handle and its mappings; the last of them frees it */
};

/*
 * map `allocation_sites`: exact sums of the allocations of one (process, operation, caller) whose calls have this
 * stack; a call without a record has none. `op` 0: being claimed. Memory in use is `allocated` minus `freed`.
 */
struct allocation_site {
	u64 key; /* slot << SLOT_SHIFT | valid << 53 | 53 bits of a hash of the next six */
	u64 caller;
	u64 python_stack;
	u64 native_stack;
	u32 execs; /* of the process */
	u32 op;
	u64 allocated_bytes;
	u64 allocations;
	u64 freed_bytes; /* of what was allocated here, wherever it was freed */
	u64 frees;
	u64 live_bytes; /* for the peak */
	u64 peak_bytes;
	u64 failures;
	u64 failed_bytes; /* requests that failed */
	u64 foreign_frees; /* frees by this caller of memory whose allocation was not seen */
	u64 pad[2]; /* to a multiple of 64 bytes */
};

/* map `memory_totals`: all sites of one (process, enum MemoryKind of ops.py) together */
struct memory_total {
	u64 live_bytes;
	u64 live_count;
	u64 peak_bytes;
};
#define MEMORY_KINDS 8 /* places per process, a power of two; place 0 is unused */

/* map `culprits` */
struct culprit_key {
	u32 culprit_pid; /* 0: idle */
	u16 process_slot;
	u8 yielded; /* the affected process had called sched_yield */
	u8 pad;
};

struct culprit_value {
	u64 ns;
	u64 switches;
	u64 cgroup_id;
	char comm[COMM_BYTES]; /* of the thread-group leader */
};

/* map `settings`: what the agent may change while tracing */
struct settings {
	u64 probe_ns; /* the part of a call's time that is the probe's own cost */
	/* sets of operation ids; one in both is suspended, so that an operation changes sets one bit at a time */
	u64 counted_ops[OP_SET_WORDS];	 /* counted at entry, without a duration */
	u64 suspended_ops[OP_SET_WORDS]; /* ignored: the call's probe may be about to be detached */
	u32 are_enqueues_unseen; /* some of the operations that enqueue or order work are among them */
	u32 pad;
};

enum admission_mode {
	ADMIT_NOBODY = 0,
	ADMIT_ANYBODY,
	ADMIT_USER, /* whose real user id is `uid` */
};

/* map `admission`: which processes become traced by their first traced call */
struct admission {
	u32 mode; /* enum admission_mode */
	u32 uid;
	u32 agent_pid;
};

enum process_watch {
	WATCH_MARKER = 1 << 0,	 /* it has a step marker */
	WATCH_SEQUENCE = 1 << 1, /* each of its enqueues and syncs is written into the ring `sequence` */
	/* the marker is a launch that the driver's call inside it identifies too; of an open call: it is the marker */
	WATCH_DRIVER_MARKER = 1 << 2,
	WATCH_INNER_MARKER = 1 << 3, /* the marker is a launch of the driver: it may be inside one of the runtime */
};

/* map `processes`: one traced process; the first fields are what each call needs */
struct process {
	u32 pid; /* 0: free slot */
	u32 is_released; /* its calls no longer count */
	u32 has_kernel_handles; /* some of its launches may use handles that are in `kernel_handles` */
	u32 watch; /* written by the agent; enum process_watch */
	/* the call that closes its steps, written by the agent before `watch` says so; steps.h */
	u64 marker_function; /* kernel, or cudaMemcpyKind; 0: any */
	u64 marker_caller;   /* 0: any */
	u64 marker_generation; /* differs from that of any marker before */
	u32 marker_op;
	u32 marker_tid;
	u64 sequence_left; /* calls that may still be written into the ring `sequence` */
	u64 start_boottime_ns;
	u64 page_allocs;
	u64 page_alloc_bytes;
	u64 gone_state_ns[STATES]; /* thread-state times of its threads that ended */
	u64 gone_switches;
	u64 gone_preemptions;
	u64 gone_threads;
	u64 net_sends; /* calls that moved bytes, all socket families */
	u64 net_sent_bytes;
	u64 net_receives;
	u64 net_received_bytes;
	u64 execs;
	u64 unseen_ns; /* written by the agent: calls made before this time may have been missed */
	u64 unpaired;  /* allocations and frees of this program that do not count in the memory in use */
	u64 program_ns; /* when this program began; 0: not seen */
	s32 captures;	/* streams whose calls are captured into a graph instead of being run */
	u32 pad2;
	u64 marker_asleep_ns; /* since when the step marker's thread has been sleeping outside calls; 0: it is not */
	/* the driver's call inside the marker's last one: closes steps while the runtime's launches are not traced */
	u64 driver_marker_function;
	u32 driver_marker_op; /* 0: none was seen; cleared by the agent together with the marker */
	u32 pad3;
};

/* what the task iterator `dump_threads` writes for each tracked thread */
struct thread_dump {
	u64 now_ns;
	u64 created_ns;
	u64 state_ns[STATES]; /* the open interval included */
	u64 switches;
	u64 switch_base; /* nvcsw + nivcsw before the first of `switches`; valid once there is one */
	u64 preemptions;
	u64 voluntary_switches;	  /* nvcsw */
	u64 involuntary_switches; /* nivcsw */
	u64 sum_exec_ns;
	u64 run_delay_ns;
	u64 flaws;
	u64 call_start_ns; /* of the open call; 0 = none */
	u64 call_caller;
	u64 call_handle;
	u64 call_function;
	u32 pid;
	u32 tid;
	u32 waker_tid;
	u16 process_slot;
	u16 call_op;
	u8 state;
	u8 is_unreadable; /* thread-state times changed in each of the retries */
	u8 waker_kind;
	u8 open_calls; /* how many; call_start_ns, call_caller, and call_op are those of the oldest */
	u32 moves_asleep; /* while the kernel kept the sleeper queued: the rest of the sleep is run_delay_ns */
	char comm[COMM_BYTES];
	u64 major_faults; /* maj_flt */
	u64 gone_major_faults; /* of the process's threads that have ended */
	u64 queued_ns;	    /* since when the kernel counts a wait not yet in run_delay_ns; 0: it does not wait */
	u64 queue_clock_ns; /* the clock of `queued_ns`: its run queue's clock as last set, at most a tick ago */
	u64 hits;	  /* probed entries, however they were handled */
	u64 thread_pointer; /* at its last switch-out */
	u64 call_sp;	    /* stack pointer at the entry of the open call */
};

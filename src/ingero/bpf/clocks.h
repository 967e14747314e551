/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * A thread's state: time in eight states, of which one grows at a time, so that their sum is always the time since
 * creation.
 *
 * Only the scheduler programs change these times (scheduler.bpf.c), and a thread whose switch-in they missed its own
 * (repairs.h). Everything else creates the storage or takes a snapshot. `sequence` is odd while a thread's state
 * changes; a reader that sees it odd or changed reads again.
 */
#pragma once
#include "maps.h"
#include "ops_gen.h"

#define CLOCK(state) ((state)-STATE_RUN)
#define OFFCPU_MIN_NS 100000
#define OFFCPU_SLOTS 64	   /* intervals a thread can collect between two readings; 100 us and more each */
#define OPEN_CALLS 2	   /* one per stack: a coroutine or signal stack has its own */
#define DUMP_TRIES 8

struct clocks {
	u64 ns[STATES];
};

/* What a free is about to release: removed from the table of allocations (allocations.h). */
struct freed_memory {
	struct allocation allocation; /* of FREES_LIVE */
	u32 what;
	u32 pad[5]; /* to a multiple of 64 bytes */
};

enum freed_what {
	FREES_NOTHING = 0,
	FREES_LIVE,
	FREES_HANDLE,  /* of physical memory that stays, because it is mapped */
	FREES_FOREIGN, /* its allocation was not seen */
};

/* What a call waits for. */
enum wait_kind {
	WAITS_NOT = 0,
	WAITS_ALL,	/* for `covered` */
	WAITS_PERHAPS,	/* whether it has waited for `covered` shows at its return (copy_waits.h) */
	WAITS_BEFORE,	/* for `covered`, and then it enqueued something itself */
	WAITS_OLDER,	/* for something of its stream, not known what, and then it enqueued something itself */
};

/* Where the bytes of a copy go, as far as the call says. */
enum copy_way {
	WAY_OTHER = 0, /* no copy, or inside one memory or between GPUs */
	WAY_TO_DEVICE,
	WAY_TO_HOST,
	WAY_UNKNOWN,
};

/*
 * A traced call that has not returned. A launch touches only the first three cache lines: what both its programs need,
 * the thread-state times, what a record needs.
 */
struct open_call {
	u64 sp; /* stack pointer at entry; 0 = free */
	u64 start_ns;
	u64 caller;
	u64 cookie;
	u64 function;
	u64 size_bytes;
	u64 flaws;
	u32 sequence;	/* of the thread at entry: if it is the same at the return, the thread never left the CPU */
	s8 stream_slot; /* -1: none */
	u8 waits;	/* enum wait_kind; if any, `covered` is valid */
	u8 way;		/* of a copy: enum copy_way */
	u8 watch;	/* enum process_watch, as the call began */
	struct clocks clocks;
	u64 handle;
	u64 extra;
	u64 stream;
	u64 switches;
	u64 preemptions;
	u64 worst_culprit_ns; /* the longest that one thread ran during one wait of this call */
	u32 worst_culprit_pid;
	u32 worst_culprit_tid;
	u64 pad2; /* to a multiple of 64 bytes */
	u64 covered[MAX_STREAMS]; /* position of each stream that this call waits for */
	struct freed_memory freed;
};

struct offcpu_interval {
	u64 start_ns;
	u64 end_ns;
	u64 woken_ns;
	u64 culprit_ns;
	u64 futex;
	u64 python_stack;
	u32 culprit_pid;
	u32 culprit_tid;
	u32 waker_pid;
	u32 waker_tid;
	u16 cpu;
	u8 state;
	u8 waker_kind;
	u16 call_op;
	u16 pad;
	char culprit_comm[COMM_BYTES];
};

/* Where a thread was when it went to sleep (sleep_looks.h). */
struct sleep_looks {
	u64 python_stack;
	u64 since_ns;  /* when this period began */
	u32 switches;  /* while they are the same, `python_stack` belongs to this sleep */
	u32 looks;     /* in this period */
	u32 rarity;    /* one sleep in 1 << rarity is walked */
	u32 is_wanted; /* the thread has no memory for a walk of its frames yet */
};

/* What was current in a thread before a context was pushed. */
struct context_level {
	u64 context;
	u64 untouched_ns;
	s32 device;
	u32 pad;
};
#define CONTEXT_LEVELS 4 /* a power of two; libraries push one, and deeper ones are unknown when popped */

/*
 * The kernel puts 8 bytes of its own before it, so that 56 bytes and the thread-state times fill a cache line each, and
 * every open call begins one.
 */
struct thread {
	u32 sequence; /* this and the next three are the thread's `standing` */
	u8 state;
	u8 hint;
	u16 process_slot;
	u64 created_ns; /* 0: the thread's state has not started */
	u64 since_ns;
	u64 switches; /* switch-outs seen; switch_base is valid once there was one */
	u64 preemptions;
	u64 flaws; /* missed or repaired events so far */
	u32 emptied_sequence; /* `sequence` when a return last checked for finished off-CPU intervals */
	u32 is_claimed;	      /* another program is starting this state */
	struct clocks clocks;
	struct open_call calls[OPEN_CALLS];
	u64 hits;	  /* probed entries; only the thread itself counts */
	u64 untouched_ns; /* since when it has chosen neither device nor context; 0: not known, or it has */
	u64 context;	  /* the current one, 0: none, or not known */
	s32 device;	  /* the current one, -1: not known */
	u32 nccl_group;	  /* nccl_calls.h */
	u64 waking_ns; /* the last sched_waking; may precede the switch-out it belongs to */
	u32 waker_pid;
	u32 waker_tid;
	u32 wait_cpu; /* 1 + the CPU whose waiters this thread has joined; 0 = none */
	u64 switch_base; /* nvcsw + nivcsw before the first switch-out seen */
	u64 exec_at_off_ns;
	u64 queue_clock_at_off_ns; /* 0: not known */
	u64 throttled_at_off_ns;
	u64 last_off_ns;
	u64 last_on_ns;
	u64 gone_ns; /* off the CPU since then, except for short runs, too short to have checked the GPU */
	u64 away_ns; /* the same, where a yielding thread may have checked but need not: it may not have got that far */
	u64 last_wake_ns; /* when the last sleep ended */
	u64 last_futex; /* where it began to wait at the last switch-out, as in struct offcpu_record */
	u8 waker_kind;
	u8 last_off_state;
	u8 exec_is_known; /* `exec_at_off_ns` has been read */
	u8 woken_kind; /* what ended the last sleep; `waker_kind` may be of a wake-up that ended none */
	u32 moves_asleep; /* to another run queue */
	u32 marks_steps;  /* its own tid, once it has called a step marker; 0: never */
	u32 pad;
	u64 offcpu_head; /* written by the switch-in */
	u64 offcpu_tail; /* written by whatever empties the buffer */
	u64 joined_ns;	 /* when it began to wait on `wait_cpu` */
	u64 switches_missed;
	u64 last_slept_ns; /* when the last sleep ended that was not for a disk, for the kernel, or for SIGCONT */
	u64 python_stack; /* of the call that returns: see native_stack.h */
	u64 native_stack;
	u64 python_thread; /* where its interpreter keeps this thread, as last found */
	u64 maker_sp; /* of a call that creates a context, inside another call; 0: none */
	u64 maker_out;
	u32 maker_device;
	u32 context_depth; /* pushes */
	struct context_level below[CONTEXT_LEVELS];
	struct open_call inner; /* a call of KIND_MEMORY inside one of another kind */
	u32 is_draining; /* `offcpu` is being emptied */
	u32 looked_switches; /* of the main thread when it was last sampled: main_thread.h */
	u32 woken_tid; /* beside `woken_kind` */
	u32 last_launch_ns; /* what its last launch took, at most 4 s; 0: not known */
	struct clocks blocked; /* in calls that waited for the GPU: steps.h */
	u64 blocked_ns[BLOCKED_KINDS];
	struct sleep_looks sleep;
	struct offcpu_interval offcpu[OFFCPU_SLOTS];
};

/* The first eight bytes of a thread's state as one number, for changes of two of them at once. */
typedef u64 __attribute__((may_alias)) standing;
#define STANDING_STATE 32 /* where `state` begins */
#define STANDING_SLOT 48

INLINE standing *standing_of(struct thread *thread)
{
	return (standing *)&thread->sequence;
}

struct {
	MAP_UINT(type, BPF_MAP_TYPE_TASK_STORAGE);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct thread);
} threads MAP;

INLINE struct thread *thread_of(struct task_struct *task)
{
	return bpf_task_storage_get(&threads, task, NULL, 0);
}

/*
 * Storage is zeroed memory when created: state INIT, no open call. `created_ns` stays 0 until the state has started;
 * the scheduler programs ignore such a thread, so creation needs no lock. Returns false if another program started it.
 */
INLINE bool start_account(struct thread *thread, u32 slot, u8 state, u8 hint)
{
	u64 now;

	if (__sync_lock_test_and_set(&thread->is_claimed, 1))
		return false;
	thread->process_slot = slot;
	thread->device = -1;
	thread->hint = hint;
	thread->state = state;
	now = bpf_ktime_get_ns();
	thread->since_ns = now;
	barrier();
	WRITE_ONCE(thread->created_ns, now);
	return true;
}

/* A new thread has chosen no device; the first one of a forked process has what its parent had. */
INLINE void inherit_device(struct thread *to, const struct thread *from)
{
	to->context = from->context;
	to->device = from->device;
	to->untouched_ns = from->untouched_ns;
	to->context_depth = from->context_depth;
	for (int i = 0; i < CONTEXT_LEVELS; i++)
		to->below[i] = from->below[i];
}

INLINE bool is_sleep(u8 state)
{
	return state >= STATE_SLEEP && state <= STATE_STOPPED;
}

/* What a thread has been doing from `since_ns` until now, if it was asleep, as far as its state says. */
INLINE u8 sleeping_state(struct thread *thread)
{
	u32 before = READ_ONCE(thread->sequence);
	u64 since = READ_ONCE(thread->since_ns), waking = READ_ONCE(thread->waking_ns);
	u8 state = READ_ONCE(thread->state);

	if (state == STATE_INIT)
		state = READ_ONCE(thread->hint);
	if ((before & 1) || before != READ_ONCE(thread->sequence) || waking > since || !is_sleep(state))
		return STATE_INIT;
	return state;
}

INLINE bool is_wait(u8 state)
{
	return state >= STATE_RUNQ && state <= STATE_YIELDED;
}

#define FLAWS_UNKNOWN (~0ULL) /* instead of a count: the times beside it cannot be trusted */

/* Whether a missed or torn event lies between two readings of the thread-state times, or in one of them. */
INLINE bool is_flawed(u64 flaws_before, u64 flaws_after)
{
	return flaws_before != flaws_after || flaws_after == FLAWS_UNKNOWN;
}

struct snapshot {
	u64 now_ns;
	struct clocks clocks;
	u64 switches;
	u64 preemptions;
	u64 flaws;
};

/*
 * Time cannot be negative, but a repair between two readings may move time from one state to another. What is missing
 * is taken from the states that have it, so the sum stays the same.
 */
GLOBAL int settle(struct clocks *spent)
{
	u64 missing = 0;

	if (!spent)
		return 0;
	for (int i = 0; i < STATES; i++) {
		if ((s64)spent->ns[i] >= 0)
			continue;
		missing -= spent->ns[i];
		spent->ns[i] = 0;
	}
	for (int i = 0; i < STATES; i++) {
		u64 taken = spent->ns[i] < missing ? spent->ns[i] : missing;

		spent->ns[i] -= taken;
		missing -= taken;
	}
	return 0;
}

/* What ended the last sleep was not seen. */
INLINE void forget_waker(struct thread *thread)
{
	thread->waker_kind = WAKER_NONE;
	thread->waker_pid = thread->waker_tid = 0;
}

/* A sleep in this state ended at `at`, by the waker that was noted last. */
INLINE void note_woken(struct thread *thread, u8 state, u64 at)
{
	thread->last_wake_ns = at;
	if (state == STATE_SLEEP)
		thread->last_slept_ns = at;
	thread->woken_kind = thread->waker_kind;
	thread->woken_tid = thread->waker_tid;
}

/* While this stays the same, a sleeping thread is still in the same sleep. */
INLINE u32 switches_of(struct task_struct *task)
{
	return task->nvcsw + task->nivcsw;
}

/* The interval that ends at `at`, of a thread that comes on CPU `cpu`; its culprit is not known. */
INLINE void describe_offcpu(struct offcpu_interval *interval, struct thread *thread, u32 switches, u32 cpu, u64 at)
{
	bool has_slept = is_sleep(thread->last_off_state);
	bool is_looked_at = has_slept && thread->sleep.switches == switches;

	interval->start_ns = thread->last_off_ns;
	interval->end_ns = at;
	interval->woken_ns = has_slept ? thread->last_wake_ns : 0;
	interval->waker_pid = interval->woken_ns ? thread->waker_pid : 0;
	interval->waker_tid = interval->woken_ns ? thread->waker_tid : 0;
	interval->waker_kind = interval->woken_ns ? thread->waker_kind : WAKER_NONE;
	interval->futex = has_slept ? thread->last_futex : 0;
	interval->python_stack = is_looked_at ? thread->sleep.python_stack : 0;
	interval->cpu = cpu;
	interval->state = thread->last_off_state;
	interval->call_op = 0;
	for (int i = 0; i < OPEN_CALLS; i++)
		if (thread->calls[i].sp)
			interval->call_op = COOKIE_OP(thread->calls[i].cookie);
}

INLINE void send_offcpu(const struct offcpu_interval *from, u32 slot, u32 pid, u32 tid, const char *comm)
{
	struct offcpu_record *to = bpf_ringbuf_reserve(&offcpu, sizeof(*to), 0);

	if (!to) {
		count_drop(DROP_OFFCPU_RING_FULL, 1);
		return;
	}
	to->start_ns = from->start_ns;
	to->end_ns = from->end_ns;
	to->woken_ns = from->woken_ns;
	to->culprit_ns = from->culprit_ns;
	to->futex = from->futex;
	to->python_stack = from->python_stack;
	to->pid = pid;
	to->tid = tid;
	to->culprit_pid = from->culprit_pid;
	to->culprit_tid = from->culprit_tid;
	to->waker_pid = from->waker_pid;
	to->waker_tid = from->waker_tid;
	to->process_slot = slot;
	to->cpu = from->cpu;
	to->state = from->state;
	to->waker_kind = from->waker_kind;
	to->call_op = from->call_op;
	read_comm(to->comm, comm);
	__builtin_memcpy(to->culprit_comm, from->culprit_comm, COMM_BYTES);
	bpf_ringbuf_submit(to, BPF_RB_NO_WAKEUP);
}

/* Whose intervals are being moved. */
struct offcpu_owner {
	u32 pid;
	u32 tid;
	u32 process_slot;
	u32 pad;
	char comm[COMM_BYTES];
};

/* Verified once, not for each of the 64 rounds of the loop that calls it. */
GLOBAL int move_offcpu(const struct offcpu_interval *from, const struct offcpu_owner *owner)
{
	if (!from || !owner)
		return 0;
	send_offcpu(from, owner->process_slot, owner->pid, owner->tid, owner->comm);
	return 0;
}

/* Moves finished off-CPU intervals to their ring. Called by the thread itself or the task iterator, one at a time. */
INLINE void empty_offcpu(struct thread *thread, struct task_struct *task)
{
	struct offcpu_owner owner = {.pid = task->tgid, .tid = task->pid, .process_slot = thread->process_slot};
	u64 tail = READ_ONCE(thread->offcpu_tail);

	if (READ_ONCE(thread->offcpu_head) == tail || __sync_lock_test_and_set(&thread->is_draining, 1))
		return;
	read_comm(owner.comm, task->comm);
	tail = READ_ONCE(thread->offcpu_tail);
	for (int i = 0; i < OFFCPU_SLOTS; i++) {
		if (tail == READ_ONCE(thread->offcpu_head))
			break;
		move_offcpu(&thread->offcpu[tail & (OFFCPU_SLOTS - 1)], &owner);
		tail++;
	}
	WRITE_ONCE(thread->offcpu_tail, tail);
	barrier();
	WRITE_ONCE(thread->is_draining, 0);
}

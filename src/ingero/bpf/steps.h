/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Steps: what a program repeats, from one call of its step marker to the next. The agent finds the marker in a window
 * of the process's calls (ring `sequence`) and writes it into the process's entry; from then on each call of it closes
 * a step here (ring `steps`).
 *
 * A launch pays for this with tests of what its programs have read anyway: launches are counted per stream, and only
 * calls that waited, copied, or communicated update the step.
 */
#pragma once
#include "clocks.h"
#include "copy_waits.h"
#include "gpu_streams.h"
#include "marks.h"
#include "ops_gen.h"

struct step_counts {
	u64 copies;
	u64 collectives;
	u64 syncs;
	u64 to_gpu_bytes;
	u64 to_host_bytes;
	u64 shared_ns[BLOCKED_KINDS]; /* blocked in other threads, while the marker's slept */
	u64 unknown; /* launches that waited for room, or took so long by themselves */
};

/* The state of everything when the current step began; `counts` go on. */
struct step_account {
	u64 generation; /* of the marker that began it; 0: none has begun */
	u64 begin_ns;
	u64 begin_flaws;
	u64 shared_until_ns; /* such time is counted up to here: never twice for several threads */
	struct step_counts counts;
	struct step_counts at_begin;
	struct clocks clocks;  /* of the marker's thread */
	struct clocks blocked; /* the same, inside calls that waited for the GPU */
	u64 own_blocked_ns[BLOCKED_KINDS];
	u64 launches[MAX_STREAMS];
	u64 base[MAX_STREAMS]; /* where the current sync interval of each stream began */
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, MAX_PROCESSES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct step_account);
} step_accounts MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} steps MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} sequence MAP;

const volatile u64 sequence_ring_bytes = 1 << 20;

INLINE struct step_account *step_account_of(u32 slot)
{
	return bpf_map_lookup_elem(&step_accounts, &slot);
}

/*
 * What distinguishes one call of an operation from another: the kernel, or the direction of a copy. A graph is made
 * anew and is the same step again; for collectives `function` is a number.
 */
INLINE u64 step_function(const struct open_call *call)
{
	u32 kind = COOKIE_KIND(call->cookie);

	if (kind & KIND_LAUNCH)
		return call->function;
	return kind & KIND_COPY && COOKIE_EXTRA(call->cookie) ? call->extra : 0;
}

INLINE bool is_step_marker(u32 slot, const struct open_call *call, u32 tid)
{
	const struct process *process = bpf_map_lookup_elem(&processes, &slot);
	u32 op = COOKIE_OP(call->cookie);

	if (!process || tid != process->marker_tid)
		return false;
	if (op == process->marker_op)
		return (!process->marker_function || process->marker_function == step_function(call)) &&
		       (!process->marker_caller || process->marker_caller == call->caller);
	return op == process->driver_marker_op && process->driver_marker_function == call->function;
}

/* A copy or a collective begins. Launches do not come here. */
GLOBAL int count_in_step(struct open_call *call, u32 slot)
{
	struct step_account *account = step_account_of(slot);

	if (!call || !account)
		return 0;
	if (COOKIE_KIND(call->cookie) & KIND_COLLECTIVE) {
		__sync_fetch_and_add(&account->counts.collectives, 1);
		return 0;
	}
	__sync_fetch_and_add(&account->counts.copies, 1);
	if (call->way == WAY_TO_DEVICE)
		__sync_fetch_and_add(&account->counts.to_gpu_bytes, summed_bytes(call->size_bytes));
	else if (call->way == WAY_TO_HOST)
		__sync_fetch_and_add(&account->counts.to_host_bytes, summed_bytes(call->size_bytes));
	return 0;
}

/* What a call that took longer than enqueuing was waiting for; BLOCKED_KINDS: not the GPU. */
INLINE u32 blocked_kind(const struct open_call *call, u32 slot)
{
	u32 kind = COOKIE_KIND(call->cookie);

	if (kind & KIND_SYNC)
		return BLOCKED_SYNC;
	if (call->waits)
		return BLOCKED_COPY;
	if (kind & KIND_ENQUEUE)
		return may_be_full(slot, call->stream_slot) ? BLOCKED_LAUNCH : BLOCKED_KINDS;
	return kind & (KIND_ALLOC | KIND_FREE) && has_uncovered_work(slot, MAX_STREAMS) ? BLOCKED_ALLOC : BLOCKED_KINDS;
}

/*
 * Another thread than the marker's, such as autograd's, was blocked for `waited_ns` in a call that returns now. As far
 * as the marker's thread has been sleeping since then, it waited for the GPU with it; if it was woken meanwhile, it did
 * not wait for this one.
 */
GLOBAL int share_blocked(struct open_call *call, struct snapshot *at, u32 place, u64 waited_ns)
{
	u32 slot = place >> 8, kind = place & (BLOCKED_KINDS - 1);
	struct step_account *account = step_account_of(slot);
	struct process *process = bpf_map_lookup_elem(&processes, &slot);
	u64 from;

	if (!call || !at || !account || !process || process->marker_tid == (u32)bpf_get_current_pid_tgid())
		return 0;
	from = READ_ONCE(process->marker_asleep_ns);
	if (!from)
		return 0;
	if (from < call->start_ns)
		from = call->start_ns;
	if (from < account->shared_until_ns)
		from = account->shared_until_ns;
	if (from >= at->now_ns)
		return 0;
	account->shared_until_ns = at->now_ns;
	if (waited_ns > at->now_ns - from)
		waited_ns = at->now_ns - from;
	__sync_fetch_and_add(&account->counts.shared_ns[kind], waited_ns);
	return 0;
}

/*
 * A call that may have waited for the GPU has returned. Only the time in which the thread polled, slept, or yielded is
 * such a wait: while it was runnable, throttled, stopped, or waited for a disk or the kernel, another GPU would not
 * have made it faster.
 */
GLOBAL int note_blocked(struct thread *thread, struct open_call *call, struct snapshot *at, u32 slot)
{
	struct step_account *account = step_account_of(slot);
	u64 spent[STATES], waited, own;
	u32 kind;

	if (!thread || !call || !at || !account)
		return 0;
	if (COOKIE_KIND(call->cookie) & KIND_SYNC)
		__sync_fetch_and_add(&account->counts.syncs, 1);
	kind = blocked_kind(call, slot);
	if (kind >= BLOCKED_KINDS)
		return 0;
	subtract(spent, &at->clocks, &call->clocks);
	waited = spent[CLOCK(STATE_RUN)] + spent[CLOCK(STATE_YIELDED)] + spent[CLOCK(STATE_SLEEP)];
	if (kind == BLOCKED_LAUNCH) {
		struct gpu_stream *gpu_stream = gpu_stream_at(slot, call->stream_slot);
		s64 for_room = gpu_stream ? waited_for_room(&gpu_stream->times, waited) : -1;

		if (for_room < 0)
			__sync_fetch_and_add(&account->counts.unknown, 1);
		if (for_room <= 0)
			return 0;
		own = waited - for_room;
		own = own > spent[CLOCK(STATE_RUN)] ? spent[CLOCK(STATE_RUN)] : own;
		spent[CLOCK(STATE_RUN)] -= own;
		waited -= own;
	}
	thread->blocked.ns[CLOCK(STATE_RUN)] += spent[CLOCK(STATE_RUN)];
	thread->blocked.ns[CLOCK(STATE_YIELDED)] += spent[CLOCK(STATE_YIELDED)];
	thread->blocked.ns[CLOCK(STATE_SLEEP)] += spent[CLOCK(STATE_SLEEP)];
	thread->blocked_ns[kind & (BLOCKED_KINDS - 1)] += waited;
	share_blocked(call, at, slot << 8 | kind, waited);
	if (waited >= BLOCKED_MIN_NS && kind != BLOCKED_ALLOC && call->waits != WAITS_OLDER)
		note_mark(call, at, slot << 8 | kind, waited);
	return 0;
}

/* The stream with the most launches in the step that ends is its stream. */
GLOBAL int fill_step_gpu_streams(struct step_record *step, struct step_account *account, u32 slot)
{
	u64 most = 0;

	if (!step || !account)
		return 0;
	for (int i = 0; i < MAX_STREAMS; i++) {
		struct gpu_stream *gpu_stream = gpu_stream_at(slot, i);
		u64 launches;

		if (!gpu_stream || !gpu_stream->key)
			break;
		launches = READ_ONCE(gpu_stream->launches) - account->launches[i];
		step->launches += launches;
		if (launches <= most)
			continue;
		most = launches;
		step->stream = gpu_stream->key;
		step->device = (s32)gpu_stream->device - 1;
		step->is_synced = READ_ONCE(gpu_stream->base) != account->base[i];
	}
	return 0;
}

GLOBAL int fill_step(struct step_record *step, struct step_account *account, struct thread *thread,
		     struct open_call *call)
{
	const struct step_counts *now, *before;
	struct clocks *blocked;

	if (!step || !account || !thread || !call)
		return 0;
	now = &account->counts;
	before = &account->at_begin;
	blocked = (struct clocks *)step->blocked_state_ns;
	step->begin_ns = account->begin_ns;
	step->end_ns = call->start_ns;
	step->generation = account->generation;
	step->copies = now->copies - before->copies;
	step->collectives = now->collectives - before->collectives;
	step->syncs = now->syncs - before->syncs;
	step->to_gpu_bytes = now->to_gpu_bytes - before->to_gpu_bytes;
	step->to_host_bytes = now->to_host_bytes - before->to_host_bytes;
	step->is_queue_unknown = now->unknown != before->unknown;
	for (int i = 0; i < BLOCKED_KINDS; i++) {
		step->blocked_ns[i] = thread->blocked_ns[i] - account->own_blocked_ns[i];
		step->shared_ns[i] = now->shared_ns[i] - before->shared_ns[i];
	}
	subtract(step->blocked_state_ns, &thread->blocked, &account->blocked);
	for (int i = 0; i < STATES; i++)
		step->host_state_ns[i] = call->clocks.ns[i] - account->clocks.ns[i] - blocked->ns[i];
	settle((struct clocks *)step->host_state_ns);
	if (is_flawed(account->begin_flaws, call->flaws))
		step->flags |= SYNC_INTERVAL_INCOMPLETE;
	return 0;
}

/* What the values of the next step will be relative to. */
GLOBAL int begin_step(struct step_account *account, struct thread *thread, struct open_call *call, u32 slot)
{
	if (!account || !thread || !call)
		return 0;
	account->begin_ns = call->start_ns;
	account->begin_flaws = call->flaws;
	account->clocks = call->clocks;
	account->blocked = thread->blocked;
	account->at_begin = account->counts;
	for (int i = 0; i < BLOCKED_KINDS; i++)
		account->own_blocked_ns[i] = thread->blocked_ns[i];
	for (int i = 0; i < MAX_STREAMS; i++) {
		struct gpu_stream *gpu_stream = gpu_stream_at(slot, i);

		account->launches[i] = gpu_stream ? READ_ONCE(gpu_stream->launches) : 0;
		account->base[i] = gpu_stream ? READ_ONCE(gpu_stream->base) : 0;
	}
	return 0;
}

/* The step marker is called: ends the current step, which the call itself does not belong to, and begins the next. */
GLOBAL int end_step(struct thread *thread, struct open_call *call, u32 slot)
{
	struct step_account *account = step_account_of(slot);
	struct process *process = bpf_map_lookup_elem(&processes, &slot);
	struct step_record *step;

	if (!thread || !call || !account || !process)
		return 0;
	if (account->generation == process->marker_generation) {
		step = bpf_ringbuf_reserve(&steps, sizeof(*step), 0);
		if (step) {
			__builtin_memset(step, 0, sizeof(*step));
			step->pid = process->pid;
			step->tid = process->marker_tid;
			/* the marker's own, where the driver's call stands for it: the step is the same */
			step->op = process->marker_op;
			step->function = process->marker_function;
			step->caller = process->marker_caller;
			step->process_slot = slot;
			step->device = -1;
			fill_step(step, account, thread, call);
			fill_step_gpu_streams(step, account, slot);
			bpf_ringbuf_submit(step, BPF_RB_NO_WAKEUP);
		} else {
			count_drop(DROP_STEPS_RING_FULL, 1);
		}
	}
	account->generation = process->marker_generation;
	thread->marks_steps = process->marker_tid;
	return begin_step(account, thread, call, slot);
}

/*
 * A launch of the driver inside one of the runtime. Inside the marker's it is noted: it is the outermost one while the
 * runtime's launches are not traced. A marker that was found while they were not is itself inside one when they are
 * traced again, and that one is used in its place.
 */
NOINLINE int closes_step_inside(struct pt_regs *context, struct thread *thread, struct open_call *outer, u64 cookie)
{
	u32 slot = thread->process_slot & (MAX_PROCESSES - 1);
	struct process *process = bpf_map_lookup_elem(&processes, &slot);
	struct arguments arguments;
	u64 function;

	if (!process || !read_arguments(context, &arguments))
		return 0;
	function = argument(&arguments, COOKIE_FUNCTION(cookie));
	if (outer->watch & WATCH_DRIVER_MARKER) {
		WRITE_ONCE(process->driver_marker_function, function);
		WRITE_ONCE(process->driver_marker_op, COOKIE_OP(cookie));
		return 0;
	}
	return COOKIE_OP(cookie) == process->marker_op && function == process->marker_function &&
	       (u32)bpf_get_current_pid_tgid() == process->marker_tid &&
	       (!process->marker_caller || process->marker_caller == arguments.return_address);
}

/* One call of a learning window: which thread enqueued or synced what, and when. `end_ns` 0: its return is not seen. */
GLOBAL int write_sequence(struct open_call *call, u32 slot, u64 end_ns)
{
	struct process *process = bpf_map_lookup_elem(&processes, &slot);
	struct sequence_record *record;
	u64 id = bpf_get_current_pid_tgid();

	if (!call || !process || !(COOKIE_KIND(call->cookie) & (KIND_ENQUEUE | KIND_SYNC)))
		return 0;
	if ((s64)__sync_fetch_and_add(&process->sequence_left, -1) <= 0)
		return 0;
	record = bpf_ringbuf_reserve(&sequence, sizeof(*record), 0);
	if (!record) {
		count_drop(DROP_SEQUENCE_RING_FULL, 1);
		return 0;
	}
	record->start_ns = call->start_ns;
	record->duration_ns = end_ns ? end_ns - call->start_ns : 0;
	record->function = step_function(call);
	record->caller = call->caller;
	record->stream = call->stream;
	record->size_bytes = call->size_bytes;
	record->pid = id >> 32;
	record->tid = id;
	record->op = COOKIE_OP(call->cookie);
	record->process_slot = slot;
	record->pad = 0;
	bpf_ringbuf_submit(record, ring_wakeup(&sequence, sequence_ring_bytes, sizeof(*record)));
	return 0;
}

/* A new program has no step yet. */
INLINE void forget_steps(struct process *process, u32 slot)
{
	struct step_account *account = step_account_of(slot);

	process->watch = 0;
	process->marker_asleep_ns = 0;
	process->driver_marker_op = 0;
	if (account)
		__builtin_memset(account, 0, sizeof(*account));
}

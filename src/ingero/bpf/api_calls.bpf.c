// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * One generic program for every traced call; the attach cookie says what the call does (ops_gen.h).
 *
 * At entry the thread's clocks are noted, at return their difference is the call's account. Only the outermost traced call
 * of a stack is accounted: a runtime call that calls the driver is one stall, not two; the inner ones are counted.
 */
#include "admission.h"
#include "arguments.h"
#include "cells.h"
#include "cgroup.h"
#include "clocks.h"
#include "contexts.h"
#include "lanes.h"
#include "nccl_calls.h"
#include "native_stack.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NEW_CELL_RECORDS 100 /* before a threshold is known; more would flood the ring in the first second */
#define STACK_SPAN_BYTES (8ULL << 20) /* two stack pointers further apart belong to two stacks; the usual size of one */
#define DEVICE_TO_DEVICE 3 /* cudaMemcpyKind */
#define ACCOUNT_WAIT_TRIES 64

const volatile u32 record_all = 0;
const volatile u32 sampling_rate = 0; /* 1 in so many ordinary calls is recorded; 0: as the cell says */
const volatile u32 with_stacks = 0;
const volatile u64 calls_ring_bytes = 1 << 20;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} calls MAP;

/* set by the agent while it runs */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct settings);
} settings MAP;

/* The calling thread's account, begun now if this is the first we see of it. */
INLINE struct thread *own_account(struct task_struct *task, u32 slot)
{
	struct thread *thread = thread_of(task);

	if (likely(thread && thread->created_ns))
		return thread;
	if (!thread)
		thread = bpf_task_storage_get(&threads, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (thread && !start_account(thread, slot, STATE_RUN, STATE_RUN))
		for (int i = 0; i < ACCOUNT_WAIT_TRIES && !READ_ONCE(thread->created_ns); i++)
			barrier();
	if (thread && READ_ONCE(thread->created_ns))
		return thread;
	count_loss(LOSS_THREAD_STORAGE_FAILED, 1);
	return NULL;
}

INLINE bool is_same_stack(u64 one, u64 other)
{
	return (one < other ? other - one : one - other) < STACK_SPAN_BYTES;
}

/* Where the kernel makes probed calls of this process return to. */
INLINE u64 return_trampoline(struct task_struct *task)
{
	struct mm_struct *mm = task->mm;
	struct xol_area *area = mm ? mm->uprobes_state.xol_area : NULL;

	return area ? area->vaddr : 0;
}

/*
 * A place for a new open call, or NULL if this call is inside another. A call whose frame lies at or below the stack
 * pointer was left by longjmp or an exception: it is popped. At an equal stack pointer the caller tells: a tail call sees
 * the return trampoline of the outer call instead of a caller of its own.
 */
INLINE struct open_call *open_place(struct thread *thread, struct task_struct *task, u64 sp, u64 return_address,
				    bool *is_nested)
{
	struct open_call *place = NULL;

	*is_nested = false;
	for (int i = OPEN_CALLS - 1; i >= 0; i--) {
		struct open_call *call = &thread->calls[i];

		if (!call->sp) {
			place = call;
		} else if (is_same_stack(call->sp, sp)) {
			if (sp < call->sp || (sp == call->sp && return_address == return_trampoline(task))) {
				*is_nested = true;
				return NULL;
			}
			count_loss(LOSS_FRAME_STALE, 1);
			call->sp = 0;
			place = call;
		}
	}
	if (!place)
		count_loss(LOSS_FRAME_OVERFLOW, 1);
	return place;
}

/* Positions on streams. Returns the lane whose epoch this call begins, or NULL. */
INLINE struct lane *begin_streams(struct open_call *call, u32 slot, struct thread *thread, u32 tid)
{
	u32 kind = COOKIE_KIND(call->cookie);
	struct lane *first = NULL, *lane;

	call->stream_slot = -1;
	call->is_wait = 0;
	if (kind & (KIND_ENQUEUE | KIND_SYNC_STREAM | KIND_EVENT_RECORD | KIND_STREAM_WAIT))
		call->stream_slot = find_lane(
			slot, lane_key(call->stream, COOKIE_FLAGS(call->cookie), thread->device, tid), thread->device);
	if (call->stream_slot >= 0) {
		if (kind & KIND_ENQUEUE) {
			lane = lane_at(slot, call->stream_slot);
			if (lane && begin_enqueue(lane, call->cookie, call->size_bytes,
						  kind & KIND_GRAPH ? call->handle : 0))
				first = lane;
		} else if (kind & KIND_EVENT_RECORD) {
			record_event(slot, call->handle, call->stream_slot);
		} else if (kind & KIND_STREAM_WAIT) {
			wait_event(slot, call->handle, call->stream_slot);
		}
	}
	if (kind & KIND_DRAIN &&
	    !(COOKIE_FLAGS(call->cookie) & FLAG_ASYNC_IF_ON_DEVICE && call->extra == DEVICE_TO_DEVICE))
		begin_wait(call, slot, thread->device, call->handle);
	return first;
}

INLINE bool has_op(const u64 *set, u32 op)
{
	return set[op >> 6 & (OP_SET_WORDS - 1)] >> (op & 63) & 1;
}

/*
 * What the return would have counted of a call that is only seen at its entry. Its position counts as reached at once: a
 * wait of another thread that begins before this call has returned takes it for covered.
 */
INLINE void count_at_entry(struct open_call *call, u32 slot)
{
	struct lane *lane;

	if (call->function)
		count_kernel(slot, call->function);
	if (!(COOKIE_KIND(call->cookie) & KIND_ENQUEUE) || call->stream_slot < 0)
		return;
	lane = lane_at(slot, call->stream_slot);
	if (lane)
		__sync_fetch_and_add(&lane->end, 1);
}

/* Returns 1 if the return of this call is of no interest. */
INLINE int on_entry(struct pt_regs *context, bool is_entry_only)
{
	u64 id = bpf_get_current_pid_tgid(), cookie, sp = STACK_POINTER(context);
	u32 slot = slot_of(id >> 32);
	struct task_struct *task = bpf_get_current_task_btf();
	struct arguments arguments;
	struct process *process;
	struct open_call *call;
	struct thread *thread;
	struct lane *first;
	struct cell *cell;
	bool is_nested, is_counted_here;
	struct settings *set;
	struct snapshot at;
	u32 zero = 0;

	if (unlikely(slot == NO_SLOT)) {
		slot = admit(task);
		if (slot == NO_SLOT)
			return 1;
		slot &= MAX_PROCESSES - 1;
	}
	thread = own_account(task, slot);
	process = bpf_map_lookup_elem(&processes, &slot);
	set = bpf_map_lookup_elem(&settings, &zero);
	if (!thread || !process || !set)
		return 1;
	thread->hits++;
	cookie = bpf_get_attach_cookie(context);
	if (has_op(set->suspended_ops, COOKIE_OP(cookie)))
		return 1;
	is_counted_here = is_entry_only || has_op(set->counted_ops, COOKIE_OP(cookie));
	if (!read_arguments(context, &arguments))
		count_loss(LOSS_USER_READ_FAILED, 1);
	call = open_place(thread, task, sp, arguments.return_address, &is_nested);
	if (!call || is_counted_here) {
		cell = cell_of(slot, COOKIE_OP(cookie), is_nested ? 0 : arguments.return_address);
		if (cell)
			__sync_fetch_and_add(is_nested ? &cell->nested : &cell->count, 1);
		if (is_counted_here && COOKIE_KIND(cookie) & CURRENT_KINDS)
			lose_current(thread);
		if (is_nested && !is_counted_here && note_maker(thread, &arguments, cookie, sp))
			return 0;
		if (is_nested || !is_counted_here)
			return 1;
	}
	if (!call)
		return 1;
	take_default_device(thread, process, cookie);
	call->caller = arguments.return_address;
	call->cookie = cookie;
	call->size_bytes = size_argument(&arguments, cookie);
	call->handle = argument(&arguments, COOKIE_HANDLE(cookie));
	call->extra = argument(&arguments, COOKIE_EXTRA(cookie));
	call->function = argument(&arguments, COOKIE_FUNCTION(cookie));
	call->stream = stream_argument(&arguments, cookie);
	call->worst_culprit_ns = 0;
	if (COOKIE_KIND(cookie) & KIND_NCCL)
		note_nccl(call, thread, &arguments, slot);
	first = begin_streams(call, slot, thread, id);
	if (is_counted_here) {
		count_at_entry(call, slot);
		if (!first) {
			if (COOKIE_KIND(cookie) & KIND_ENQUEUE)
				process->last_enqueue_ns = bpf_ktime_get_ns();
			return 1;
		}
	}
	/* last, so that as little as possible of this program lies inside the call's account */
	take_snapshot(thread, &at);
	call->start_ns = at.now_ns;
	call->clocks = at.clocks;
	call->flaws = at.is_torn ? ~0ULL : at.flaws;
	call->switches = at.switches;
	call->preemptions = at.preemptions;
	if (first)
		note_first_enqueue(first, id, &at);
	if (COOKIE_KIND(cookie) & KIND_ENQUEUE)
		process->last_enqueue_ns = at.now_ns;
	if (is_counted_here)
		return 1;
	call->sp = sp;
	return 0;
}

/*
 * Takes the probe's own cost out of the account: the way out of the entry trap and into the return trap, as calibrated on
 * an empty function. It was spent running; duration and clock shrink alike, so the account still adds up.
 */
INLINE void leave_out_probe(struct open_call *call, const struct snapshot *at)
{
	u64 ran = at->clocks.ns[CLOCK(STATE_RUN)] - call->clocks.ns[CLOCK(STATE_RUN)];
	struct settings *set;
	u32 zero = 0;
	u64 own;

	set = bpf_map_lookup_elem(&settings, &zero);
	own = set ? set->probe_ns : 0;
	if (own > ran)
		own = ran;
	call->start_ns += own;
	call->clocks.ns[CLOCK(STATE_RUN)] += own;
}

INLINE void add_to_cell(struct cell *cell, struct open_call *call, const struct snapshot *at, u64 duration, s32 ret)
{
	u64 sum = duration;

	__sync_fetch_and_add(&cell->sum_ns, sum);
	if (duration > READ_ONCE(cell->max_ns))
		raise_to(&cell->max_ns, duration);
	if (call->size_bytes)
		__sync_fetch_and_add(&cell->size_bytes, call->size_bytes);
	if (ret)
		__sync_fetch_and_add(&cell->errors, 1);
	for (int i = 0; i < CLOCKS; i++) {
		u64 spent = at->clocks.ns[i] - call->clocks.ns[i];

		if (spent)
			__sync_fetch_and_add(&cell->clock_ns[i], spent);
	}
	__sync_fetch_and_add(&cell->histogram[bucket_of(duration) & (HISTOGRAM_BUCKETS - 1)], 1);
}

/* Why this call gets a record of its own; 0: it does not. */
INLINE u32 reason_to_record(struct cell *cell, u64 nth, u64 duration)
{
	u64 threshold = READ_ONCE(cell->threshold_ns), sample = sampling_rate;

	if (!sample)
		sample = READ_ONCE(cell->sample);
	if (nth < NEW_CELL_RECORDS)
		return CALL_RARE;
	if (threshold && duration >= threshold)
		return threshold == 1 ? CALL_RARE : CALL_SLOW;
	if (record_all || (sample && nth % sample == 0))
		return CALL_SAMPLED;
	return 0;
}

INLINE void write_record(struct thread *thread, struct open_call *call, const struct snapshot *at, s32 ret, u32 flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct call_record *record = bpf_ringbuf_reserve(&calls, sizeof(*record), 0);
	u64 sum = 0;

	if (!record) {
		count_loss(LOSS_CALL_RECORDS_RING_FULL, 1);
		return;
	}
	record->start_ns = call->start_ns;
	record->duration_ns = at->now_ns - call->start_ns;
	for (int i = 0; i < CLOCKS; i++) {
		u64 spent = at->clocks.ns[i] - call->clocks.ns[i];

		record->clock_ns[i] = spent;
		sum += spent;
	}
	record->residual_ns = record->duration_ns - sum;
	record->caller = call->caller;
	record->function = call->function;
	record->size_bytes = call->size_bytes;
	record->handle = call->handle;
	record->extra = call->extra;
	record->stream = call->stream;
	record->cgroup_id = cgroup_id_of(task);
	record->python_stack = thread->python_stack;
	record->native_stack = thread->native_stack;
	record->culprit_ns = call->worst_culprit_ns;
	record->culprit_pid = call->worst_culprit_ns ? call->worst_culprit_pid : 0;
	record->culprit_tid = call->worst_culprit_ns ? call->worst_culprit_tid : 0;
	record->pid = task->tgid;
	record->tid = task->pid;
	record->waker_ns = 0;
	record->waker_tid = 0;
	record->waker_kind = WAKER_NONE;
	if (thread->last_wake_ns > call->start_ns) {
		record->waker_ns = thread->last_wake_ns;
		record->waker_tid = thread->waker_tid;
		record->waker_kind = thread->waker_kind;
	}
	if (thread->last_off_ns > call->start_ns)
		flags |= CALL_WAITED;
	if (at->is_torn || at->flaws != call->flaws || record->residual_ns)
		flags |= CALL_INCOMPLETE;
	record->ret = ret;
	record->device = thread->device;
	record->switches = at->switches - call->switches;
	record->preemptions = at->preemptions - call->preemptions;
	record->cpu = bpf_get_smp_processor_id();
	record->op = COOKIE_OP(call->cookie);
	record->process_slot = thread->process_slot;
	record->flags = flags;
	record->pad[0] = record->pad[1] = 0;
	bpf_get_current_comm(record->comm, COMM_BYTES);
	bpf_ringbuf_submit(record, ring_wakeup(&calls, calls_ring_bytes, sizeof(*record)));
}

/* What a completed call has changed: positions of its stream, the device, handles it stored. */
INLINE void end_call(struct thread *thread, struct open_call *call, struct snapshot *at, u32 slot, s32 ret)
{
	u32 kind = COOKIE_KIND(call->cookie);

	if (COOKIE_FLAGS(call->cookie) & FLAG_HANDLE_OUT)
		call->handle = ret ? 0 : read_user_word(call->handle);
	if (kind & KIND_NCCL)
		undo_nccl(call, slot, ret);
	if (kind & CURRENT_KINDS && !ret)
		change_current(thread, call, slot);
	if (kind & KIND_ENQUEUE && call->stream_slot >= 0) {
		struct lane *lane = lane_at(slot, call->stream_slot);

		if (lane)
			__sync_fetch_and_add(&lane->end, 1);
	}
	if (call->is_wait && !ret)
		end_wait(thread, call, at, slot);
}

INLINE struct open_call *open_call_at(struct thread *thread, u64 sp)
{
	for (int i = 0; i < OPEN_CALLS; i++)
		if (thread->calls[i].sp == sp)
			return &thread->calls[i];
	return NULL;
}

INLINE int on_return(struct pt_regs *context, bool is_session)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = thread_of(task);
	struct open_call *call;
	struct snapshot at;
	struct cell *cell;
	u64 duration;
	u32 slot, why;
	s32 ret;

	if (!thread)
		return 0;
	call = open_call_at(thread, STACK_POINTER_AT_ENTRY(context));
	if (!call) {
		slot = thread->process_slot & (MAX_PROCESSES - 1);
		if (!end_maker(thread, slot, STACK_POINTER_AT_ENTRY(context), RETURN_VALUE(context)) && is_session)
			count_loss(LOSS_RETURN_UNMATCHED, 1); /* else the return of an inner call */
		return 0;
	}
	take_snapshot(thread, &at);
	slot = thread->process_slot & (MAX_PROCESSES - 1); /* a call that began as a target's counts, even if that ends */
	ret = RETURN_VALUE(context);
	end_call(thread, call, &at, slot, ret);
	leave_out_probe(call, &at);
	duration = at.now_ns - call->start_ns;
	if (call->function && COOKIE_KIND(call->cookie) & KIND_LAUNCH)
		count_kernel(slot, call->function);
	cell = cell_of(slot, COOKIE_OP(call->cookie), call->caller);
	if (cell) {
		add_to_cell(cell, call, &at, duration, ret);
		why = reason_to_record(cell, __sync_fetch_and_add(&cell->count, 1), duration);
		if (why) {
			if (with_stacks)
				capture_stacks(call->caller);
			write_record(thread, call, &at, ret, why);
			__sync_fetch_and_add(&cell->recorded, 1);
		}
	}
	call->sp = 0;
	if (READ_ONCE(thread->offcpu_head) != READ_ONCE(thread->offcpu_tail))
		empty_offcpu(thread, task);
	return 0;
}

SEC("uprobe")
int call_session(struct pt_regs *context)
{
	return bpf_session_is_return() ? on_return(context, true) : on_entry(context, false);
}

SEC("uprobe")
int call_entry(struct pt_regs *context)
{
	on_entry(context, false);
	return 0;
}

SEC("uprobe")
int call_return(struct pt_regs *context)
{
	return on_return(context, false);
}

/* Entry only, where returns may not be probed or cost too much: counts, positions, no durations. */
SEC("uprobe")
int call_count(struct pt_regs *context)
{
	on_entry(context, true);
	return 0;
}

/* Open calls of a thread that ends or execs are recorded as unfinished. */
INLINE void close_unfinished(struct task_struct *task)
{
	struct thread *thread = thread_of(task);
	struct snapshot at;

	if (!thread || !thread->created_ns)
		return;
	for (int i = 0; i < OPEN_CALLS; i++) {
		struct open_call *call = &thread->calls[i];

		if (!call->sp)
			continue;
		take_snapshot(thread, &at);
		thread->python_stack = thread->native_stack = 0;
		write_record(thread, call, &at, 0, CALL_UNFINISHED);
		call->sp = 0;
	}
	empty_offcpu(thread, task);
}

SEC("tp_btf/sched_process_exit")
int thread_exits(u64 *ctx)
{
	close_unfinished((struct task_struct *)ctx[0]);
	return 0;
}

/* A new program has chosen no device and knows no context of the one before. */
INLINE void begin_image(struct task_struct *task, u32 slot)
{
	struct process *process = bpf_map_lookup_elem(&processes, &slot);
	struct thread *thread = thread_of(task);

	if (process)
		__sync_fetch_and_add(&process->execs, 1);
	if (!thread)
		return;
	lose_current(thread);
	thread->untouched_ns = bpf_ktime_get_ns();
}

/* A new program image has no streams yet. */
SEC("tp_btf/sched_process_exec")
int process_execs(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	u32 slot = slot_of(task->tgid);
	struct python_layout *layout;

	close_unfinished(task);
	if (slot == NO_SLOT)
		return 0;
	begin_image(task, slot);
	layout = bpf_map_lookup_elem(&python_layouts, &slot);
	if (layout)
		layout->runtime = 0;
	for (int i = 0; i < MAX_STREAMS; i++) {
		struct lane *lane = lane_at(slot, i);

		if (lane)
			__builtin_memset(lane, 0, sizeof(*lane));
	}
	return 0;
}

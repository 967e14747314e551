// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * One generic program for every traced call; the attach cookie says what the call does (ops_gen.h).
 *
 * At entry the thread's clocks are noted, at return their difference is the call's account. Only the outermost traced call
 * of a stack is accounted: a runtime call that calls the driver is one stall, not two; the inner ones are counted.
 */
#include "admission.h"
#include "allocations.h"
#include "arguments.h"
#include "cells.h"
#include "cgroup.h"
#include "clocks.h"
#include "contexts.h"
#include "kernel_counts.h"
#include "lanes.h"
#include "nccl_calls.h"
#include "native_stack.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NEW_CELL_RECORDS 100 /* before the agent says how many; more would flood the ring in the first second */
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
INLINE struct open_call *open_place(struct thread *thread, struct task_struct *task, struct pt_regs *context,
				    bool *is_nested)
{
	u64 sp = STACK_POINTER(context);
	struct open_call *place = NULL;

	*is_nested = false;
	for (int i = OPEN_CALLS - 1; i >= 0; i--) {
		struct open_call *call = &thread->calls[i];

		if (!call->sp) {
			place = call;
		} else if (is_same_stack(call->sp, sp)) {
			if (sp < call->sp || (sp == call->sp && return_address(context) == return_trampoline(task))) {
				*is_nested = true;
				return NULL;
			}
			count_loss(LOSS_FRAME_STALE, 1);
			if (COOKIE_KIND(call->cookie) & KIND_MEMORY)
				lose_allocation(thread->process_slot & (MAX_PROCESSES - 1), LOSS_ALLOCATIONS_UNPAIRED);
			call->sp = 0;
			place = call;
		}
	}
	if (!place)
		count_loss(LOSS_FRAME_OVERFLOW, 1);
	return place;
}

/* Positions on streams, and what a free gives back. Returns the lane whose epoch this call begins, or NULL. */
INLINE struct lane *begin_streams(struct open_call *call, u32 slot, struct thread *thread, u32 tid)
{
	u32 kind = COOKIE_KIND(call->cookie);
	struct lane *lane = NULL, *first = NULL;

	call->stream_slot = -1;
	call->is_wait = 0;
	if (likely(kind & (KIND_ENQUEUE | KIND_SYNC_STREAM | KIND_EVENT_RECORD | KIND_STREAM_WAIT))) {
		int index;
		u64 key = lane_key(call->stream, COOKIE_FLAGS(call->cookie), thread->device, tid);

		lane = find_lane(slot, key, thread->device, &index);
		call->stream_slot = index;
	}
	if (likely(lane)) {
		if (likely(kind & KIND_ENQUEUE)) {
			if (begin_enqueue(lane, call->cookie, call->size_bytes, kind & KIND_GRAPH ? call->handle : 0))
				first = lane;
		} else if (kind & KIND_EVENT_RECORD) {
			record_event(slot, call->handle, call->stream_slot);
		} else if (kind & KIND_STREAM_WAIT) {
			wait_event(slot, call->handle, call->stream_slot);
		}
	}
	if (unlikely(kind & (KIND_DRAIN | KIND_FREE))) {
		if (kind & KIND_FREE)
			begin_free(call, slot);
		else if (!(COOKIE_FLAGS(call->cookie) & FLAG_ASYNC_IF_ON_DEVICE && call->extra == DEVICE_TO_DEVICE))
			begin_wait(call, slot, thread->device, call->handle);
	}
	return first;
}

INLINE bool has_op(const u64 *set, u32 op)
{
	return set[op >> 6 & (OP_SET_WORDS - 1)] >> (op & 63) & 1;
}

/* The process whose slot the thread's account names, if that still is the thread's own and its calls count. */
INLINE struct process *process_of(struct thread *thread, struct task_struct *task)
{
	u32 slot = thread->process_slot;
	struct process *process = bpf_map_lookup_elem(&processes, &slot);

	return process && process->pid == (u32)task->tgid && !process->is_released && thread->created_ns ? process : NULL;
}

/* The account of a thread that calls for the first time, or since its process got another slot; NULL: not a target's. */
NOINLINE struct thread *new_caller(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 slot = slot_of(task->tgid);
	struct thread *thread;

	if (slot == NO_SLOT) {
		slot = admit(task);
		if (slot == NO_SLOT)
			return NULL;
		slot &= MAX_PROCESSES - 1;
	}
	thread = own_account(task, slot);
	if (thread)
		thread->process_slot = slot;
	return thread;
}

/* The arguments that every call has. */
INLINE void note_usual_arguments(struct open_call *call, struct pt_regs *context, struct arguments *arguments)
{
	u64 cookie = call->cookie;

	if (unlikely(!read_arguments(context, arguments)))
		count_loss(LOSS_USER_READ_FAILED, 1);
	call->caller = arguments->return_address;
	call->size_bytes = size_argument(arguments, cookie);
	call->handle = argument(arguments, COOKIE_HANDLE(cookie));
	call->extra = argument(arguments, COOKIE_EXTRA(cookie));
	call->function = argument(arguments, COOKIE_FUNCTION(cookie));
	call->stream = stream_argument(arguments, cookie);
}

INLINE void note_arguments(struct open_call *call, struct pt_regs *context, struct thread *thread, u32 slot)
{
	struct arguments arguments;

	note_usual_arguments(call, context, &arguments);
	if (unlikely(COOKIE_KIND(call->cookie) & KIND_NCCL))
		note_nccl(call, thread, &arguments, slot);
}

/*
 * Of memory calls whose return is not seen only a free can be followed: nearly all succeed. One of unknown memory may be
 * the driver's part of a runtime call that has been counted.
 */
GLOBAL int count_memory_at_entry(struct open_call *call, u32 slot)
{
	if (!call)
		return 0;
	if (!(COOKIE_KIND(call->cookie) & KIND_FREE))
		lose_allocation(slot, LOSS_ALLOCATIONS_UNPAIRED);
	else if (call->freed.what == FREES_LIVE)
		end_memory(call, slot, 0, 0, 0);
	return 0;
}

INLINE void count_nested(u32 slot, u64 cookie)
{
	struct cell *cell = cell_of(slot, COOKIE_OP(cookie), 0);

	if (cell)
		__sync_fetch_and_add(&cell->nested, 1);
}

INLINE void count_entry(u32 slot, u64 cookie, u64 caller)
{
	struct cell *cell = cell_of(slot, COOKIE_OP(cookie), caller);

	if (cell)
		__sync_fetch_and_add(&cell->count, 1);
}

/*
 * A call of KIND_MEMORY inside another call: it counts in what is live, but if the call around it does so (a runtime call
 * that calls the driver). NCCL allocates most of its buffers inside its own calls. Returns whether its return matters.
 */
NOINLINE bool begin_inner_memory(struct pt_regs *context, struct thread *thread, u32 slot, u64 cookie, bool is_counted_here)
{
	struct open_call *inner = &thread->inner;
	u64 sp = STACK_POINTER(context);
	struct arguments arguments;

	for (int i = 0; i < OPEN_CALLS; i++) {
		struct open_call *call = &thread->calls[i];

		if (call->sp && is_same_stack(call->sp, sp) && COOKIE_KIND(call->cookie) & KIND_MEMORY)
			return false;
	}
	if (inner->sp && is_same_stack(inner->sp, sp) && sp <= inner->sp)
		return false;
	if (inner->sp || is_counted_here)
		lose_allocation(slot, LOSS_ALLOCATIONS_UNPAIRED);
	inner->sp = 0;
	if (is_counted_here)
		return false;
	inner->cookie = cookie;
	/* never a collective; with their part the stack of three functions would be too large for kernels before 6.13 */
	note_usual_arguments(inner, context, &arguments);
	inner->start_ns = bpf_ktime_get_ns();
	if (COOKIE_KIND(cookie) & KIND_FREE)
		begin_free(inner, slot);
	inner->sp = sp;
	return true;
}

/*
 * What the return would have counted of a call that is only seen at its entry. Its position counts as reached at once: a
 * wait of another thread that begins before this call has returned takes it for covered.
 */
INLINE void count_at_entry(struct open_call *call, u32 slot)
{
	struct lane *lane;

	if (call->function && COOKIE_KIND(call->cookie) & KIND_LAUNCH)
		count_kernel(slot, call->function, call->caller);
	if (!(COOKIE_KIND(call->cookie) & KIND_ENQUEUE) || call->stream_slot < 0)
		return;
	lane = lane_at(slot, call->stream_slot);
	if (lane)
		__sync_fetch_and_add(&lane->end, 1);
}

/* Returns 1 if the return of this call is of no interest. */
INLINE int on_entry(struct pt_regs *context, bool is_entry_only)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = thread_of(task);
	bool is_nested, is_counted_here;
	struct open_call *call;
	struct settings *set;
	struct lane *first;
	u32 slot, zero = 0;
	u64 cookie;

	if (unlikely(!thread || !process_of(thread, task))) {
		thread = new_caller();
		if (!thread)
			return 1;
	}
	set = bpf_map_lookup_elem(&settings, &zero);
	if (!set)
		return 1;
	slot = thread->process_slot & (MAX_PROCESSES - 1);
	thread->hits++;
	cookie = bpf_get_attach_cookie(context);
	if (unlikely(has_op(set->suspended_ops, COOKIE_OP(cookie))))
		return 1;
	is_counted_here = is_entry_only || has_op(set->counted_ops, COOKIE_OP(cookie));
	if (unlikely(is_counted_here && COOKIE_KIND(cookie) & CURRENT_KINDS))
		lose_current(thread);
	call = open_place(thread, task, context, &is_nested);
	if (unlikely(!call)) {
		if (!is_nested) {
			count_entry(slot, cookie, return_address(context));
			if (COOKIE_KIND(cookie) & KIND_MEMORY)
				lose_allocation(slot, LOSS_ALLOCATIONS_UNPAIRED);
			return 1;
		}
		count_nested(slot, cookie);
		if (likely(!(COOKIE_KIND(cookie) & (KIND_MEMORY | KIND_CONTEXT))))
			return 1;
		if (COOKIE_KIND(cookie) & KIND_MEMORY)
			return is_entry_only || !begin_inner_memory(context, thread, slot, cookie, is_counted_here);
		if (is_counted_here || !makes_context(cookie))
			return 1;
		note_maker(thread, context, cookie);
		return 0;
	}
	take_default_device(thread, slot, cookie);
	call->cookie = cookie;
	note_arguments(call, context, thread, slot);
	call->worst_culprit_ns = 0;
	first = begin_streams(call, slot, thread, task->pid);
	if (is_counted_here) {
		count_entry(slot, cookie, call->caller);
		count_at_entry(call, slot);
		if (unlikely(COOKIE_KIND(cookie) & KIND_MEMORY) && !is_entry_only)
			count_memory_at_entry(call, slot);
		if (!first)
			return 1;
	}
	/* last, so that as little as possible of this program lies inside the call's account */
	note_beginning(thread, call);
	if (unlikely(first))
		note_first_enqueue(first, task->pid, call);
	if (is_counted_here)
		return 1;
	call->sp = STACK_POINTER(context);
	return 0;
}

/* After a missed event: what the clocks at the return say since the beginning of the call is made times that can be. */
GLOBAL int settle_clocks(struct clocks *at, struct clocks *before)
{
	if (!at || !before)
		return 0;
	for (int i = 0; i < CLOCKS; i++)
		at->ns[i] -= before->ns[i];
	settle(at);
	for (int i = 0; i < CLOCKS; i++)
		at->ns[i] += before->ns[i];
	return 0;
}

/*
 * Takes the probe's own cost out of the account: the way out of the entry trap and into the return trap, as calibrated on
 * an empty function. It was spent running; duration and clock shrink alike, so the account still adds up.
 */
INLINE void leave_out_probe(struct open_call *call, u64 ran_ns)
{
	struct settings *set;
	u32 zero = 0;
	u64 own;

	set = bpf_map_lookup_elem(&settings, &zero);
	own = set ? set->probe_ns : 0;
	if (own > ran_ns)
		own = ran_ns;
	call->start_ns += own;
	call->clocks.ns[CLOCK(STATE_RUN)] += own;
}

/* What the thread did besides running, and what the clocks do not explain. Before `sum_ns`, of which running is the rest. */
INLINE void add_clocks(struct cell *cell, struct open_call *call, const struct snapshot *at)
{
	u64 residual = at->now_ns - call->start_ns;

	for (int i = 0; i < CLOCKS; i++) {
		u64 spent = at->clocks.ns[i] - call->clocks.ns[i];

		residual -= spent;
		if (spent && i != CLOCK(STATE_RUN))
			__sync_fetch_and_add(&cell->clock_ns[i], spent);
	}
	if (residual)
		__sync_fetch_and_add(&cell->residual_ns, residual);
}

INLINE void add_to_cell(struct cell *cell, struct open_call *call, u64 duration, s32 ret)
{
	__sync_fetch_and_add(&cell->sum_ns, duration);
	if (unlikely(duration > READ_ONCE(cell->max_ns)))
		raise_to(&cell->max_ns, duration);
	if (unlikely(call->size_bytes))
		__sync_fetch_and_add(&cell->size_bytes, call->size_bytes);
	if (unlikely(ret))
		__sync_fetch_and_add(&cell->errors, 1);
	__sync_fetch_and_add(&cell->histogram[bucket_of(duration) & (HISTOGRAM_BUCKETS - 1)], 1);
}

/* Why this call gets a record of its own; 0: it does not. */
INLINE u32 reason_to_record(struct cell *cell, const struct open_call *call, u64 nth, u64 duration, s32 ret)
{
	u64 threshold = READ_ONCE(cell->threshold_ns), sample = sampling_rate;

	if (unlikely(ret) && COOKIE_KIND(call->cookie) & KIND_ALLOC)
		return CALL_FAILED;
	if (!sample)
		sample = READ_ONCE(cell->sample);
	if (nth < NEW_CELL_RECORDS || nth < READ_ONCE(cell->rare_until))
		return CALL_RARE;
	if (threshold && duration >= threshold)
		return CALL_SLOW;
	if (record_all || (sample && nth % sample == 0))
		return CALL_SAMPLED;
	return 0;
}

GLOBAL int write_record(struct thread *thread, struct open_call *call, struct snapshot *at, s32 ret, u32 flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct call_record *record;
	u64 sum = 0;

	if (!thread || !call || !at)
		return 0;
	record = bpf_ringbuf_reserve(&calls, sizeof(*record), 0);
	if (!record) {
		count_loss(LOSS_CALL_RECORDS_RING_FULL, 1);
		return 0;
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
	if (is_flawed(call->flaws, at->flaws) || record->residual_ns)
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
	return 0;
}

INLINE void take_handle(struct open_call *call, s32 ret)
{
	call->handle = ret ? 0 : read_user_word(call->handle);
	if (COOKIE_FLAGS(call->cookie) & FLAG_PITCHED)
		take_pitch(call, ret);
}

/* What a completed call has changed: positions of its stream, the device, handles it stored. */
INLINE void end_call(struct thread *thread, struct open_call *call, u32 slot, s32 ret)
{
	u32 kind = COOKIE_KIND(call->cookie);

	if (unlikely(COOKIE_FLAGS(call->cookie) & FLAG_HANDLE_OUT))
		take_handle(call, ret);
	if (unlikely(kind & (KIND_NCCL | CURRENT_KINDS))) {
		if (kind & KIND_NCCL)
			undo_nccl(call, slot, ret);
		if (kind & CURRENT_KINDS && !ret)
			change_current(thread, call, slot);
		if (kind & KIND_CONTEXT && !ret && !(COOKIE_FLAGS(call->cookie) & FLAG_HANDLE_OUT))
			lose_context(slot);
	}
	if (likely(kind & KIND_ENQUEUE && call->stream_slot >= 0)) {
		struct lane *lane = lane_at(slot, call->stream_slot);

		if (lane)
			__sync_fetch_and_add(&lane->end, 1);
	}
}

INLINE struct open_call *open_call_at(struct thread *thread, u64 sp)
{
	for (int i = 0; i < OPEN_CALLS; i++)
		if (thread->calls[i].sp == sp)
			return &thread->calls[i];
	return NULL;
}

/* The return of an inner call that counts in what is live; returns whether it was one. */
NOINLINE bool end_inner_memory(struct thread *thread, u32 slot, u64 sp, s32 ret)
{
	struct open_call *inner = &thread->inner;

	if (inner->sp != sp)
		return false;
	inner->sp = 0;
	if (COOKIE_FLAGS(inner->cookie) & FLAG_HANDLE_OUT)
		take_handle(inner, ret);
	end_memory(inner, slot, ret, 0, 0);
	return true;
}

/* Off-CPU intervals come from the scheduler's programs, so there are none if those have not run since the last look. */
GLOBAL int empty_finished(struct thread *thread)
{
	if (!thread)
		return 0;
	thread->emptied_sequence = READ_ONCE(thread->sequence);
	if (READ_ONCE(thread->offcpu_head) != READ_ONCE(thread->offcpu_tail))
		empty_offcpu(thread, bpf_get_current_task_btf());
	return 0;
}

/*
 * The first thing it does is to read the time. It is the time of the return if the thread has not left the CPU since the
 * call began, because then all its clocks but one still stand where they stood; else everything is read anew.
 */
INLINE int on_return(struct pt_regs *context, bool is_session)
{
	u64 now = bpf_ktime_get_ns(), duration;
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = thread_of(task);
	struct open_call *call;
	struct snapshot at;
	struct cell *cell;
	bool has_run_only;
	u32 slot, why = 0;
	s32 ret;

	if (unlikely(!thread))
		return 0;
	call = open_call_at(thread, STACK_POINTER_AT_ENTRY(context));
	if (unlikely(!call)) {
		slot = thread->process_slot & (MAX_PROCESSES - 1);
		if (!end_inner_memory(thread, slot, STACK_POINTER_AT_ENTRY(context), RETURN_VALUE(context)) &&
		    !end_maker(thread, slot, STACK_POINTER_AT_ENTRY(context), RETURN_VALUE(context)) && is_session)
			count_loss(LOSS_RETURN_UNMATCHED, 1); /* else the return of an inner call */
		return 0;
	}
	has_run_only = READ_ONCE(thread->sequence) == call->sequence;
	if (likely(has_run_only))
		snapshot_of_running(call, now, &at);
	else
		take_snapshot(thread, &at);
	slot = thread->process_slot & (MAX_PROCESSES - 1); /* a call that began as a target's counts, even if that ends */
	ret = RETURN_VALUE(context);
	end_call(thread, call, slot, ret);
	if (unlikely(call->is_wait && !ret))
		end_wait(thread, call, &at, slot);
	if (unlikely(is_flawed(call->flaws, at.flaws)))
		settle_clocks(&at.clocks, &call->clocks);
	leave_out_probe(call, at.clocks.ns[CLOCK(STATE_RUN)] - call->clocks.ns[CLOCK(STATE_RUN)]);
	duration = at.now_ns - call->start_ns;
	if (likely(call->function && COOKIE_KIND(call->cookie) & KIND_LAUNCH))
		count_kernel(slot, call->function, call->caller);
	cell = cell_of(slot, COOKIE_OP(call->cookie), call->caller);
	if (likely(cell)) {
		if (unlikely(!has_run_only))
			add_clocks(cell, call, &at);
		add_to_cell(cell, call, duration, ret);
		why = reason_to_record(cell, call, __sync_fetch_and_add(&cell->count, 1), duration, ret);
		if (unlikely(why)) {
			if (with_stacks)
				capture_stacks(call->caller);
			write_record(thread, call, &at, ret, why);
			__sync_fetch_and_add(&cell->recorded, 1);
		}
	}
	if (unlikely(COOKIE_KIND(call->cookie) & KIND_MEMORY))
		end_memory(call, slot, ret, why ? thread->python_stack : 0, why ? thread->native_stack : 0);
	call->sp = 0;
	if (unlikely(READ_ONCE(thread->sequence) != thread->emptied_sequence))
		empty_finished(thread);
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
		settle_clocks(&at.clocks, &call->clocks);
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

	if (process) {
		__sync_fetch_and_add(&process->execs, 1);
		forget_memory(slot, process);
	}
	if (!thread)
		return;
	lose_current(thread);
	thread->inner.sp = 0;
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

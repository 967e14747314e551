/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * At the return of a traced call, the difference of the thread-state times is its breakdown, and its effects are
 * complete.
 */
#pragma once
#include "call_records.h"
#include "contexts.h"
#include "copy_waits.h"
#include "inner_memory.h"
#include "kernel_counts.h"
#include "gpu_streams.h"
#include "main_thread.h"
#include "native_stack.h"
#include "own_clocks.h"
#include "settings.h"
#include "steps.h"

const volatile u32 with_stacks = 0;

/* After a missed event: makes the differences since the start of the call possible values. */
GLOBAL int settle_clocks(struct clocks *at, struct clocks *before)
{
	if (!at || !before)
		return 0;
	for (int i = 0; i < STATES; i++)
		at->ns[i] -= before->ns[i];
	settle(at);
	for (int i = 0; i < STATES; i++)
		at->ns[i] += before->ns[i];
	return 0;
}

/*
 * Removes the probe's own cost from the call: the way out of the entry trap and into the return trap, as calibrated on
 * an empty function. It was spent running; duration and running time shrink alike, so the parts still add up.
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

/* A capture has begun or ended: in between, nothing that the process copies on its streams runs or waits. */
INLINE void count_capture(const struct open_call *call, u32 slot, s32 ret)
{
	struct process *process = bpf_map_lookup_elem(&processes, &slot);

	if (!process || !COOKIE_STREAM(call->cookie)) /* instantiates a graph or changes one */
		return;
	if (!(COOKIE_FLAGS(call->cookie) & FLAG_HANDLE_OUT))
		__sync_fetch_and_add(&process->captures, ret ? 0 : 1);
	else if (READ_ONCE(process->captures) > 0) /* one that fails ends the capture too */
		__sync_fetch_and_add(&process->captures, -1);
}

/* What a completed call has changed: positions of its stream, the GPU, handles it stored. */
INLINE void end_call(struct thread *thread, struct open_call *call, u32 slot, s32 ret)
{
	u32 kind = COOKIE_KIND(call->cookie);

	if (unlikely(COOKIE_FLAGS(call->cookie) & FLAG_HANDLE_OUT))
		take_handle(call, ret);
	if (unlikely(kind & (KIND_NCCL | KIND_CAPTURE | CURRENT_KINDS))) {
		if (kind & KIND_CAPTURE)
			count_capture(call, slot, ret);
		if (kind & KIND_NCCL)
			undo_nccl(call, slot, ret);
		if (kind & CURRENT_KINDS && !ret)
			change_current(thread, call, slot);
		if (kind & KIND_CONTEXT && !ret && !(COOKIE_FLAGS(call->cookie) & FLAG_HANDLE_OUT))
			lose_context(slot);
	}
	end_enqueue(call, slot);
}

/* Off-CPU intervals come from the scheduler programs, so there are none if those have not run since the last check. */
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
 * First reads the time. It is the time of the return if the thread has not left the CPU since the call began, because
 * then all thread-state times but one are unchanged; otherwise everything is read again.
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
			count_drop(DROP_RETURN_UNMATCHED, 1); /* otherwise it is the return of an inner call */
		return 0;
	}
	has_run_only = READ_ONCE(thread->sequence) == call->sequence;
	if (likely(has_run_only))
		snapshot_of_running(call, now, &at);
	else
		take_snapshot(thread, &at);
	slot = thread->process_slot & (MAX_PROCESSES - 1); /* a call that began while traced counts in any case */
	ret = RETURN_VALUE(context);
	end_call(thread, call, slot, ret);
	if (unlikely(call->waits)) {
		if (call->waits == WAITS_PERHAPS)
			judge_copy(thread, call, &at, slot);
		if (call->waits && call->waits != WAITS_OLDER && !ret)
			end_wait(thread, call, &at, slot);
	}
	if (unlikely(is_flawed(call->flaws, at.flaws)))
		settle_clocks(&at.clocks, &call->clocks);
	leave_out_probe(call, at.clocks.ns[CLOCK(STATE_RUN)] - call->clocks.ns[CLOCK(STATE_RUN)]);
	duration = at.now_ns - call->start_ns;
	if (unlikely(duration >= BLOCKED_MIN_NS || call->waits || COOKIE_KIND(call->cookie) & KIND_SYNC))
		note_blocked(thread, call, &at, slot);
	if (unlikely(call->watch & WATCH_SEQUENCE))
		write_sequence(call, slot, at.now_ns);
	if (likely(COOKIE_KIND(call->cookie) & KIND_ENQUEUE))
		note_enqueued(slot, call, at.now_ns, duration);
	if (likely(COOKIE_KIND(call->cookie) & KIND_LAUNCH)) {
		thread->last_launch_ns = duration >> 32 ? ~0U : duration;
		if (likely(call->function))
			count_kernel(slot, call->function, call->caller);
	}
	cell = cell_of(slot, COOKIE_OP(call->cookie), call->caller);
	if (likely(cell)) {
		if (unlikely(!has_run_only))
			add_clocks(cell, call, &at);
		add_to_cell(cell, call, duration, ret);
		if (unlikely(call->way))
			add_copy(cell, call, duration);
		why = reason_to_record(cell, call, __sync_fetch_and_add(&cell->count, 1), duration, ret);
		if (unlikely(why)) {
			if (with_stacks && capture_stacks(call->caller))
				note_main_thread();
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

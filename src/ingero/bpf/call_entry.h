/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* At the entry of a traced call, the thread-state times are noted, and its effects on streams and memory begin. */
#pragma once
#include "callers.h"
#include "cells.h"
#include "contexts.h"
#include "copy_waits.h"
#include "inner_memory.h"
#include "kernel_counts.h"
#include "gpu_streams.h"
#include "own_clocks.h"
#include "settings.h"
#include "steps.h"

#define DEVICE_TO_DEVICE 3 /* cudaMemcpyKind */

/* Positions on streams, and what a free releases. Returns the stream whose sync interval this call begins, or NULL. */
INLINE struct gpu_stream *begin_streams(struct open_call *call, u32 slot, struct thread *thread, u32 tid)
{
	u32 kind = COOKIE_KIND(call->cookie);
	struct gpu_stream *gpu_stream = NULL, *first = NULL;

	call->stream_slot = -1;
	call->waits = WAITS_NOT;
	call->way = WAY_OTHER;
	if (likely(kind & (KIND_ENQUEUE | KIND_SYNC_STREAM | KIND_EVENT_RECORD | KIND_STREAM_WAIT))) {
		int index;
		u64 key = gpu_stream_key(call->stream, COOKIE_FLAGS(call->cookie), thread->device, tid);

		gpu_stream = find_gpu_stream(slot, key, thread->device, &index);
		call->stream_slot = index;
	}
	if (likely(gpu_stream)) {
		if (likely(kind & KIND_ENQUEUE)) {
			if (begin_enqueue(gpu_stream, call->cookie, call->size_bytes, kind & KIND_GRAPH ? call->handle : 0))
				first = gpu_stream;
		} else if (kind & KIND_EVENT_RECORD) {
			record_event(slot, call->handle, call->stream_slot);
		} else if (kind & KIND_STREAM_WAIT) {
			wait_event(slot, call->handle, call->stream_slot);
		}
	}
	if (unlikely(may_touch_host(call->cookie)))
		begin_copy(call, slot);
	if (unlikely(kind & (KIND_SYNC | KIND_FREE))) {
		if (kind & KIND_FREE)
			begin_free(call, slot);
		else if (!(COOKIE_FLAGS(call->cookie) & FLAG_ASYNC_IF_ON_DEVICE && call->extra == DEVICE_TO_DEVICE))
			begin_wait(call, slot, thread->device, call->handle);
	}
	if (unlikely(kind & (KIND_COPY | KIND_COLLECTIVE)))
		count_in_step(call, slot);
	return first;
}

/*
 * Of memory calls whose return is not seen, only a free can be followed: nearly all succeed. One of unknown memory may
 * be the driver's part of a runtime call that was already counted.
 */
GLOBAL int count_memory_at_entry(struct open_call *call, u32 slot)
{
	if (!call)
		return 0;
	if (!(COOKIE_KIND(call->cookie) & KIND_FREE))
		lose_allocation(slot, DROP_ALLOCATIONS_UNPAIRED);
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
 * What the return would have counted, for a call that is only seen at its entry. Its position counts as reached at
 * once: a sync of another thread that begins before this call has returned treats it as covered.
 */
INLINE void count_at_entry(struct open_call *call, u32 slot)
{
	if (call->function && COOKIE_KIND(call->cookie) & KIND_LAUNCH)
		count_kernel(slot, call->function, call->caller);
	end_enqueue(call, slot);
}

/* Returns 1 if the return of this call is not needed. */
INLINE int on_entry(struct pt_regs *context, bool is_entry_only)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = thread_of(task);
	struct process *process = thread ? process_of(thread, task) : NULL;
	bool is_counted_here;
	struct open_call *call, *outer;
	struct settings *set;
	struct gpu_stream *first;
	u32 slot, zero = 0;
	u64 cookie;

	if (unlikely(!process)) {
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
	call = open_place(thread, task, context, &outer);
	if (unlikely(!call)) {
		if (!outer) {
			count_entry(slot, cookie, return_address(context));
			if (COOKIE_KIND(cookie) & KIND_MEMORY)
				lose_allocation(slot, DROP_ALLOCATIONS_UNPAIRED);
			return 1;
		}
		count_nested(slot, cookie);
		if (unlikely(outer->watch & (WATCH_DRIVER_MARKER | WATCH_INNER_MARKER)) &&
		    COOKIE_KIND(cookie) & KIND_LAUNCH && closes_step_inside(context, thread, outer, cookie))
			end_step(thread, outer, slot);
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
	call->watch = process ? READ_ONCE(process->watch) : 0;
	if (call->watch & WATCH_MARKER && !is_step_marker(slot, call, task->pid))
		call->watch &= ~(WATCH_MARKER | WATCH_DRIVER_MARKER); /* of a call: whether it is the step marker */
	first = begin_streams(call, slot, thread, task->pid);
	if (is_counted_here) {
		if (COOKIE_KIND(cookie) & KIND_LAUNCH)
			thread->last_launch_ns = 0;
		count_entry(slot, cookie, call->caller);
		count_at_entry(call, slot);
		if (unlikely(COOKIE_KIND(cookie) & KIND_MEMORY) && !is_entry_only)
			count_memory_at_entry(call, slot);
		if (!first && !(call->watch & (WATCH_MARKER | WATCH_SEQUENCE)))
			return 1;
	}
	/* last, so that as little as possible of this program is included in the call's time */
	note_beginning(thread, call);
	if (unlikely(first))
		note_first_enqueue(first, task->pid, call);
	if (unlikely(call->watch & WATCH_MARKER))
		end_step(thread, call, slot);
	if (is_counted_here) {
		if (unlikely(call->watch & WATCH_SEQUENCE))
			write_sequence(call, slot, 0);
		return 1;
	}
	call->sp = STACK_POINTER(context);
	return 0;
}

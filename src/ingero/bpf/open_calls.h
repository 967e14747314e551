/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The open calls of a thread, one per stack, and whether a call lies inside one of them. */
#pragma once
#include "allocations.h"
#include "arguments.h"
#include "clocks.h"
#include "gpu_streams.h"

#define STACK_SPAN_BYTES (8ULL << 20) /* two stack pointers further apart belong to two stacks; the usual size of one */

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

/* A call whose return will not be seen: its enqueue is over, its effect on memory is not known. */
GLOBAL int give_up_call(struct open_call *call, u32 slot)
{
	if (!call)
		return 0;
	slot &= MAX_PROCESSES - 1;
	end_enqueue(call, slot);
	if (COOKIE_KIND(call->cookie) & KIND_MEMORY)
		lose_allocation(slot, DROP_ALLOCATIONS_UNPAIRED);
	return 0;
}

/*
 * Room for a new open call, or NULL if this call is inside another. A call whose frame is at or below the stack pointer
 * was left by longjmp or an exception: it is popped. At an equal stack pointer the caller decides: a tail call sees the
 * return trampoline of the outer call instead of a caller of its own.
 */
INLINE struct open_call *open_place(struct thread *thread, struct task_struct *task, struct pt_regs *context,
				    struct open_call **outer)
{
	u64 sp = STACK_POINTER(context);
	struct open_call *place = NULL;

	*outer = NULL;
	for (int i = OPEN_CALLS - 1; i >= 0; i--) {
		struct open_call *call = &thread->calls[i];

		if (!call->sp) {
			place = call;
		} else if (is_same_stack(call->sp, sp)) {
			if (sp < call->sp || (sp == call->sp && return_address(context) == return_trampoline(task))) {
				*outer = call;
				return NULL;
			}
			count_drop(DROP_FRAME_STALE, 1);
			give_up_call(call, thread->process_slot);
			call->sp = 0;
			place = call;
		}
	}
	if (!place)
		count_drop(DROP_FRAME_OVERFLOW, 1);
	return place;
}

INLINE struct open_call *open_call_at(struct thread *thread, u64 sp)
{
	for (int i = 0; i < OPEN_CALLS; i++)
		if (thread->calls[i].sp == sp)
			return &thread->calls[i];
	return NULL;
}

/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Memory calls inside other traced calls: they are not timed, but they count in the memory in use. */
#pragma once
#include "call_arguments.h"
#include "open_calls.h"

/*
 * A call of KIND_MEMORY inside another call: it counts in the memory in use unless the call around it does so (a
 * runtime call that calls the driver). NCCL allocates most of its buffers inside its own calls. Returns whether its
 * return matters.
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
		lose_allocation(slot, DROP_ALLOCATIONS_UNPAIRED);
	inner->sp = 0;
	if (is_counted_here)
		return false;
	inner->cookie = cookie;
	/* never a collective; with its part the stack of three functions would be too large for kernels before 6.13 */
	note_usual_arguments(inner, context, &arguments);
	inner->start_ns = bpf_ktime_get_ns();
	if (COOKIE_KIND(cookie) & KIND_FREE)
		begin_free(inner, slot);
	inner->sp = sp;
	return true;
}

/* The return of an inner call that counts in the memory in use; returns whether it was one. */
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

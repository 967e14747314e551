/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* What is kept of a call's arguments, and of what it stored through them at its return. */
#pragma once
#include "allocations.h"
#include "arguments.h"
#include "clocks.h"
#include "nccl_calls.h"

/* The arguments that every call has. */
INLINE void note_usual_arguments(struct open_call *call, struct pt_regs *context, struct arguments *arguments)
{
	u64 cookie = call->cookie;

	if (unlikely(!read_arguments(context, arguments)))
		count_drop(DROP_USER_READ_FAILED, 1);
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

INLINE void take_handle(struct open_call *call, s32 ret)
{
	call->handle = ret ? 0 : read_user_word(call->handle);
	if (COOKIE_FLAGS(call->cookie) & FLAG_PITCHED)
		take_pitch(call, ret);
}

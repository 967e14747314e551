/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Which device is current in a thread: the one it chose with cudaSetDevice, or that of its current driver context,
 * which was named when the context was created. A context whose creation was not seen has no known device.
 *
 * What a call does to the current context inside another traced call is ignored: the outer one restores it.
 */
#pragma once
#include "arguments.h"
#include "clocks.h"

#define CURRENT_KINDS (KIND_SET_DEVICE | KIND_SET_CONTEXT | KIND_CONTEXT)

/* `image`: see image_of */
struct context_key {
	u64 context;
	u64 image;
	u32 pid;
	u32 pad;
};

/* device of each context; 256 processes with 16 each, evicted by least recent use */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, struct context_key);
	MAP_TYPE(value, u32);
} contexts MAP;

INLINE bool context_key(struct context_key *key, u32 slot, u64 context)
{
	struct process *process = bpf_map_lookup_elem(&processes, &slot);

	if (!process || !context)
		return false;
	key->context = context;
	key->image = image_of(process);
	key->pid = process->pid;
	key->pad = 0;
	return true;
}

INLINE void remember_context(u32 slot, u64 context, u32 device)
{
	struct context_key key;

	if (context_key(&key, slot, context))
		bpf_map_update_elem(&contexts, &key, &device, BPF_ANY);
}

INLINE void forget_context(u32 slot, u64 context)
{
	struct context_key key;

	if (context_key(&key, slot, context))
		bpf_map_delete_elem(&contexts, &key);
}

INLINE void make_current(struct thread *thread, u32 slot, u64 context)
{
	struct context_key key;
	u32 *device = NULL;

	if (context_key(&key, slot, context))
		device = bpf_map_lookup_elem(&contexts, &key);
	thread->context = context;
	thread->device = device ? *device : -1;
	thread->untouched_ns = 0;
}

INLINE void push_current(struct thread *thread)
{
	u32 depth = thread->context_depth;

	if (depth < CONTEXT_LEVELS) {
		struct context_level *level = &thread->below[depth & (CONTEXT_LEVELS - 1)];

		level->context = thread->context;
		level->untouched_ns = thread->untouched_ns;
		level->device = thread->device;
	}
	thread->context_depth = depth + 1;
}

INLINE void pop_current(struct thread *thread)
{
	u32 depth = thread->context_depth;

	thread->context = 0;
	thread->device = -1;
	thread->untouched_ns = 0;
	if (!depth) /* pushed before the process was traced */
		return;
	thread->context_depth = --depth;
	if (depth < CONTEXT_LEVELS) {
		const struct context_level *level = &thread->below[depth & (CONTEXT_LEVELS - 1)];

		thread->context = level->context;
		thread->device = level->device;
		thread->untouched_ns = level->untouched_ns;
	}
}

/* A call that changes the current device, or the set of contexts, has succeeded. */
INLINE void change_current(struct thread *thread, const struct open_call *call, u32 slot)
{
	u32 kind = COOKIE_KIND(call->cookie), flags = COOKIE_FLAGS(call->cookie);

	if (kind & KIND_SET_DEVICE) {
		thread->device = call->handle;
		thread->context = 0;
		thread->untouched_ns = 0;
		return;
	}
	if (kind & KIND_CONTEXT) {
		if (flags & FLAG_HANDLE_OUT) {
			remember_context(slot, call->handle, call->extra);
		} else {
			forget_context(slot, call->handle);
			if (call->handle && thread->context == call->handle)
				pop_current(thread);
		}
	}
	if (!(kind & KIND_SET_CONTEXT))
		return;
	if (flags & FLAG_POPS) {
		pop_current(thread);
		return;
	}
	if (flags & FLAG_PUSHES)
		push_current(thread);
	make_current(thread, slot, call->handle);
}

/* A call that may have changed it, without a probe at its return to say so. */
INLINE void lose_current(struct thread *thread)
{
	thread->context = 0;
	thread->device = -1;
	thread->untouched_ns = 0;
	thread->context_depth = 0;
}

/*
 * A runtime call on a thread that has chosen nothing works on device 0. This is certain only if every call that the
 * thread could have made was seen.
 */
INLINE void take_default_device(struct thread *thread, u32 slot, u64 cookie)
{
	struct process *process;

	if (likely(!thread->untouched_ns) || !(COOKIE_FLAGS(cookie) & FLAG_RUNTIME) ||
	    COOKIE_KIND(cookie) & KIND_SET_DEVICE)
		return;
	process = bpf_map_lookup_elem(&processes, &slot);
	if (process && thread->untouched_ns > READ_ONCE(process->unseen_ns))
		thread->device = 0;
	thread->untouched_ns = 0;
}

/* Whether a call creates a context: if it does so inside another call, its handle is known at its own return. */
INLINE bool makes_context(u64 cookie)
{
	return COOKIE_KIND(cookie) & KIND_CONTEXT && COOKIE_FLAGS(cookie) & FLAG_HANDLE_OUT;
}

INLINE void note_maker(struct thread *thread, struct pt_regs *context, u64 cookie)
{
	struct arguments arguments;

	if (!read_arguments(context, &arguments))
		count_drop(DROP_USER_READ_FAILED, 1);
	thread->maker_sp = STACK_POINTER(context);
	thread->maker_out = argument(&arguments, COOKIE_HANDLE(cookie));
	thread->maker_device = argument(&arguments, COOKIE_EXTRA(cookie));
}

/* The return of an inner call; returns whether it created a context. */
INLINE bool end_maker(struct thread *thread, u32 slot, u64 sp, s32 ret)
{
	if (thread->maker_sp != sp)
		return false;
	thread->maker_sp = 0;
	if (!ret)
		remember_context(slot, read_user_word(thread->maker_out), thread->maker_device);
	return true;
}

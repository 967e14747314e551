/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Registers and the top of the stack of the calling thread, when a recorded call returns or at a sample; the agent
 * unwinds them.
 *
 * A copy is sent once per chain of calls. Only the unwinding tables tell which words of a stack decide its chain, so
 * the agent answers the first copy of a (Python stack, return address, depth) with them, and their values become part
 * of the key. A chain with another value in one of them diverges there and gets a copy and an answer of its own. A call
 * that comes before the answer gets the existing copy and is marked.
 */
#pragma once
#include "arguments.h"
#include "python_frames.h"

#define NATIVE_STACK 1 /* `address` in `seen_python`: not a code object's */

const volatile u64 native_stacks_ring_bytes = 1 << 20;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} native_stacks MAP;

/* the agent's answers; calls of those that are evicted are marked again. 300 bytes each, a loop has hundreds */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 1); /* (agent) */
	MAP_TYPE(key, struct seen_key);
	MAP_TYPE(value, struct deciding_words);
} deciding MAP;

#if defined(__TARGET_ARCH_x86)
#define FRAME_POINTER(context) ((context)->bp)

INLINE void copy_registers(struct pt_regs *context, u64 *to)
{
	to[0] = context->ax;
	to[1] = context->dx;
	to[2] = context->cx;
	to[3] = context->bx;
	to[4] = context->si;
	to[5] = context->di;
	to[6] = context->bp;
	to[7] = context->sp;
	to[8] = context->r8;
	to[9] = context->r9;
	to[10] = context->r10;
	to[11] = context->r11;
	to[12] = context->r12;
	to[13] = context->r13;
	to[14] = context->r14;
	to[15] = context->r15;
	to[16] = context->ip;
}
#else
#define FRAME_POINTER(context) ((context)->regs[29])

INLINE void copy_registers(struct pt_regs *context, u64 *to)
{
	for (int i = 0; i < 31; i++)
		to[i] = context->regs[i];
	to[31] = context->sp;
	to[32] = context->pc;
}
#endif

/* Whole pages from the one that holds the stack pointer upwards, as many as are there. Returns the bytes copied. */
INLINE u32 copy_stack(u8 *to, u64 from)
{
	u32 copied = 0;

	for (int i = 0; i < STACK_COPY_BYTES / PAGE_BYTES; i++) {
		if (bpf_probe_read_user(to + i * PAGE_BYTES, PAGE_BYTES, (void *)(from + i * PAGE_BYTES)))
			break;
		copied += PAGE_BYTES;
	}
	return copied;
}

/* Words of a stack, from `begin` to `reach` bytes above it, in a walk's memory. */
struct stack_window {
	u64 begin;
	u64 reach;
};

/*
 * A word of the calling thread's stack, 0 if it is not there. What lies above it in its page comes with it. A function
 * of its own: inside the loop that calls it the verifier would follow its branches in each round.
 */
GLOBAL u64 stack_word(struct python_walk *walk, struct stack_window *window, u64 address)
{
	u64 place, bytes = PAGE_BYTES - (address & (PAGE_BYTES - 1));

	if (!walk || !window)
		return 0;
	if (bytes < sizeof(u64))
		return user_word(address);
	place = address - window->begin;
	if (place > window->reach) {
		window->begin = address;
		window->reach = bytes - sizeof(u64);
		place = 0;
		bpf_probe_read_user(walk->frame_bytes, bytes, (void *)address); /* zeros if it is not there */
	}
	return *(u64 *)((u8 *)walk->frame_bytes + FRAMES_OFFSET(place));
}

/*
 * The key from the deciding words of one step, or'ed with NATIVE_DECIDED if nothing more has to be read; 0: no answer
 * yet. `seen` only says where to stop: the key contains the whole of each word that was read.
 */
GLOBAL u64 next_key(u64 key, u64 sp, u64 frame_pointer)
{
	struct seen_key place = {.hash = key, .pid = bpf_get_current_pid_tgid() >> 32};
	struct deciding_words *deciding_words = bpf_map_lookup_elem(&deciding, &place);
	struct stack_window window = {};
	struct python_walk *walk;

	if (!deciding_words)
		return 0;
	walk = bpf_task_storage_get(&python_walks, bpf_get_current_task_btf(), NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!walk)
		return 0;
	for (u32 i = 0; i < DECIDING_WORDS; i++) {
		u32 word;

		if (i >= deciding_words->count)
			break;
		word = deciding_words->word[i];
		if (word & DECIDING_FRAME_POINTER)
			key = mixed(key, frame_pointer - sp);
		else if (word & DECIDING_RELATIVE)
			key = mixed(key, stack_word(walk, &window, sp + 8 * (word & DECIDING_INDEX)) - sp);
		else
			key = mixed(key, stack_word(walk, &window, sp + 8 * (word & DECIDING_INDEX)));
		if ((u16)key != deciding_words->seen[i])
			break;
	}
	key &= ~NATIVE_DECIDED;
	return key == deciding_words->last ? key | NATIVE_DECIDED : key;
}

/* The key of a stack, as far as is known what decides it. */
INLINE u64 native_key(u64 key, u64 sp, u64 frame_pointer, bool *is_decided)
{
	key &= ~NATIVE_DECIDED;
	for (int i = 0; i < DECIDING_STEPS && !*is_decided; i++) {
		u64 next = next_key(key, sp, frame_pointer);

		if (!next)
			break;
		key = next & ~NATIVE_DECIDED;
		*is_decided = next & NATIVE_DECIDED;
	}
	return key;
}

/* The key of a thread's stack. `place`: the return address, or where it was sampled. */
INLINE u64 decided_key(struct thread *thread, struct task_struct *task, struct pt_regs *context, u64 python_stack,
		       u64 place, bool *is_decided)
{
	u64 sp = STACK_POINTER(context), key;

	key = mixed(mixed(mixed(FNV_BASIS, python_stack), place), THREAD_POINTER(task) - sp);
	for (int i = 0; i < PROBED_FRAMES; i++) /* their places on the stack hold the kernel's trampoline */
		if (thread->calls[i & (OPEN_CALLS - 1)].sp)
			key = mixed(key, thread->calls[i & (OPEN_CALLS - 1)].caller);
	return native_key(key, sp, FRAME_POINTER(context), is_decided);
}

/*
 * The key of the calling thread's native stack; one not seen before is sent. 0: it could not be. `place`: the return
 * address, or where it was sampled.
 */
INLINE u64 capture_native(struct thread *thread, struct task_struct *task, u32 slot, u64 python_stack, u64 place,
			  bool is_pc_exact)
{
	struct pt_regs *context = (struct pt_regs *)bpf_task_pt_regs(task);
	struct native_stack_record *record;
	bool is_decided = false;
	u64 sp = STACK_POINTER(context), key = decided_key(thread, task, context, python_stack, place, &is_decided);

	if (!is_new(key, NATIVE_STACK, task->tgid))
		return is_decided ? key : key | NATIVE_MAYBE_OTHER;
	record = bpf_ringbuf_reserve(&native_stacks, sizeof(*record), 0);
	if (!record) {
		count_drop(DROP_STACKS_RING_FULL, 1);
		forget_seen(key, NATIVE_STACK, task->tgid);
		return 0;
	}
	copy_registers(context, record->registers);
	record->key = key;
	for (int i = 0; i < PROBED_FRAMES; i++) {
		struct open_call *call = &thread->calls[i & (OPEN_CALLS - 1)];

		record->probed_sp[i] = call->sp;
		record->probed_caller[i] = call->caller;
	}
	record->pid = task->tgid;
	record->tid = task->pid;
	record->process_slot = slot;
	record->is_pc_exact = is_pc_exact;
	record->has_python = python_stack != 0;
	record->stack_vaddr = sp & ~(PAGE_BYTES - 1ULL);
	record->stack_bytes = copy_stack(record->stack, record->stack_vaddr);
	bpf_ringbuf_submit(record, ring_wakeup(&native_stacks, native_stacks_ring_bytes, sizeof(*record)));
	return key;
}

/* whether the overhead limiter has switched stacks off */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u32);
} stacks_off MAP;

INLINE bool are_stacks_off(void)
{
	u32 zero = 0, *off = bpf_map_lookup_elem(&stacks_off, &zero);

	return off && READ_ONCE(*off);
}

/*
 * The stacks of the calling thread, stored in `thread`. Returns whether the line that counts may be another thread's:
 * it has no Python frames, or is not the main thread, as one that runs a compiled backward pass. A function that the
 * verifier checks on its own: inside the generic call program every path to it would be checked again.
 */
GLOBAL int capture_stacks(u64 caller)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = thread_of(task);
	u32 slot;

	if (!thread)
		return 0;
	thread->python_stack = thread->native_stack = 0;
	if (are_stacks_off())
		return 0;
	slot = thread->process_slot & (MAX_PROCESSES - 1);
	thread->python_stack = capture_python(thread, task, slot, true);
	thread->native_stack = capture_native(thread, task, slot, thread->python_stack, caller, false);
	return !thread->python_stack || task != task->group_leader;
}

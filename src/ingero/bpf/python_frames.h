/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * The Python frames of the calling thread, walked in its interpreter's memory at the return of a recorded call or at a
 * sample: the line that is executing, not where a function begins. Everything is read from a live process and may be
 * wrong at any moment: a frame counts only if its code object says that it is one.
 *
 * A stack is sent once; later calls carry its hash.
 */
#pragma once
#include "python_code.h"
#include "python_known.h"
#include "python_thread.h"

#define MAX_ENTRY_FRAMES PYTHON_FRAMES /* of the C code between Python frames: perf trampolines put one before each */

const volatile u64 python_stacks_ring_bytes = 1 << 20;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} python_stacks MAP;

/*
 * The frame at an address; NULL: it cannot be read. From 3.11 on a thread's frames mostly lie one above the other: what
 * lies below one in its page, where nothing can be missing, is read with it. The thread is stopped, so this cannot
 * become stale.
 */
INLINE u8 *frame_at(struct python_layout *layout, struct python_walk *walk, u64 address)
{
	u64 place = address - walk->frames_at, below = 0;

	if (place <= walk->frames_below)
		return (u8 *)walk->frame_bytes + FRAMES_OFFSET(place);
	if (layout->instruction == PYTHON_POINTER)
		below = address & (PAGE_BYTES - 1);
	if (bpf_probe_read_user(walk->frame_bytes, below + FRAME_BYTES, (void *)(address - below)))
		return NULL;
	walk->frames_at = address - below;
	walk->frames_below = below;
	return (u8 *)walk->frame_bytes + below;
}

/* The position of a frame in its code. */
INLINE s32 instruction_of(struct python_layout *layout, u8 *frame, u64 code)
{
	u64 pointer = *(u64 *)(frame + FRAME_OFFSET(layout->frame_instruction)), begin;

	if (layout->instruction == PYTHON_BYTES)
		return (s32)pointer;
	if (layout->instruction == PYTHON_UNITS)
		return (s32)pointer < 0 ? -1 : (s32)pointer * 2;
	begin = code + layout->code_instructions;
	if (layout->has_copies) { /* each thread runs its own copy of the instructions */
		u32 copy = *(u32 *)(frame + FRAME_OFFSET(layout->frame_copy));

		begin = user_word(user_word(code + layout->code_copies) + 8 + 8 * (u64)copy);
	}
	return pointer - begin;
}

/*
 * The frame of this walk that has the same code object, one that was sent; else NULL. While the thread is stopped its
 * frames hold their code objects: within a walk an address is enough.
 */
INLINE struct python_frame *frame_with(struct python_walk *walk, u64 code)
{
	u32 index = walk->frame_of[CODE_PLACE(code)];
	struct python_frame *frame = &walk->stack.frame[index & (PYTHON_FRAMES - 1)];

	return index < walk->sent_now && frame->code == code ? frame : NULL;
}

/* Like is_new(), with the key on the stack. Any byte will do for the value. */
INLINE bool is_new_to(struct python_walk *walk, u64 hash, u64 address)
{
	struct seen_key *key = &walk->seen_key;

	key->hash = hash;
	key->address = address;
	key->pid = walk->stack.pid;
	if (bpf_map_lookup_elem(&seen_python, key))
		return false;
	bpf_map_update_elem(&seen_python, key, key, BPF_ANY);
	return true;
}

/* Reads the code object of a frame, and sends it if it is new. Returns why the walk must end, else 0. */
INLINE u8 identify(struct python_step *step, u64 code, struct python_frame *to)
{
	struct python_layout *layout = step->layout;
	struct python_walk *walk = step->walk;
	struct python_stack_record *stack = &walk->stack;
	u64 line_table, key;
	bool is_sent;

	if (!read_code(layout, walk, code))
		return PYTHON_UNREADABLE;
	if (walk->code_type != layout->code_type)
		return PYTHON_NOT_CODE;
	line_table = CODE_WORD(layout, walk, layout->code_line_table);
	key = code_key(layout, walk, line_table);
	/* mostly this is the frame that the last walk found here */
	is_sent = stack->count < walk->sent && to->key == key && to->code == code;
	to->code = code;
	to->key = key;
	to->first_line = *(s32 *)CODE_AT(layout, walk, layout->code_first_line);
	if (!is_sent) {
		is_sent = !is_new_to(walk, key, code) ||
			  send_code(layout, to, CODE_WORD(layout, walk, layout->code_name), line_table,
				    stack->process_slot);
		if (!is_sent)
			bpf_map_delete_elem(&seen_python, &walk->seen_key);
	}
	if (is_sent) {
		walk->sent_now += walk->sent_now == stack->count;
		note_known(step->known, to);
	}
	walk->frame_of[CODE_PLACE(code)] = stack->count;
	return 0;
}

/* Adds a frame and continues at its caller. Returns 1 at the end. */
static long walk_frame(u32 index, struct python_step *step)
{
	struct python_layout *layout = step->layout;
	struct python_walk *walk = step->walk;
	struct python_stack_record *stack = &walk->stack;
	struct python_frame *to, *same;
	struct known_code *known;
	u8 *frame, why;
	u64 code;

	if (!walk->frame)
		return 1;
	if (stack->count >= PYTHON_FRAMES) {
		stack->flags |= PYTHON_CUT;
		return 1;
	}
	frame = frame_at(layout, walk, walk->frame);
	if (!frame) {
		stack->flags |= PYTHON_UNREADABLE;
		return 1;
	}
	code = *(u64 *)(frame + FRAME_OFFSET(layout->frame_code)) & ~7ULL; /* 3.14 tags references */
	walk->frame = *(u64 *)(frame + FRAME_OFFSET(layout->frame_previous));
	if (layout->has_owner && frame[FRAME_OFFSET(layout->frame_owner)] >= layout->owner_skipped)
		return 0;
	if (!code || code == layout->none)
		return 0;
	to = &stack->frame[stack->count & (PYTHON_FRAMES - 1)];
	to->instruction = instruction_of(layout, frame, code);
	same = frame_with(walk, code);
	known = same ? NULL : known_code(step->known, code);
	if (same || known) {
		to->code = code;
		to->key = same ? same->key : known->key;
		to->first_line = same ? same->first_line : known->first_line;
		walk->sent_now += walk->sent_now == stack->count;
	} else {
		why = identify(step, code, to);
		stack->flags |= why;
		if (why)
			return 1;
	}
	walk->hash = mixed(mixed(walk->hash, to->key), (u32)to->instruction);
	stack->count++;
	return 0;
}

GLOBAL int walk_frame_once(u32 slot)
{
	struct python_step step;

	if (!walks_python || !own_step(&step, slot))
		return 1;
	step.known = known_codes(step.walk, bpf_get_current_task_btf(), slot & (MAX_PROCESSES - 1));
	return walk_frame(0, &step);
}

INLINE void begin_walk(struct python_walk *walk, struct task_struct *task, u32 slot)
{
	struct python_stack_record *stack = &walk->stack;

	walk->hash = FNV_BASIS;
	walk->frames_at = walk->frames_below = 0;
	__builtin_memset(walk->key_words, 0, KEY_WORDS * sizeof(u64));
	walk->sent = stack->pid == (u32)task->tgid ? walk->sent_now : 0;
	walk->sent_now = 0;
	stack->pid = task->tgid;
	stack->tid = task->pid;
	stack->process_slot = slot;
	stack->count = 0;
	stack->flags = 0;
}

INLINE struct python_walk *walk_of(struct task_struct *task, bool may_allocate)
{
	struct python_walk *walk =
		bpf_task_storage_get(&python_walks, task, NULL, may_allocate ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);

	if (walk)
		walk->may_allocate = may_allocate;
	else if (may_allocate)
		count_drop(DROP_THREAD_STORAGE_FAILED, 1);
	return walk;
}

/*
 * The hash of a thread's Python stack, 0 if it has none. A stack not seen before is sent. It is the calling thread, or
 * one of its process that is asleep: the walk uses the memory of the calling one. May_allocate: such memory is created
 * for a thread that has none.
 */
INLINE u64 capture_python(struct thread *thread, struct task_struct *task, u32 slot, bool may_allocate)
{
	struct task_struct *walker = bpf_get_current_task_btf();
	struct python_stack_record *stack;
	struct python_step step;

	if (!walks_python)
		return 0;
	step.layout = bpf_map_lookup_elem(&python_layouts, &slot);
	if (!step.layout || !step.layout->runtime)
		return 0;
	step.walk = walk_of(walker, may_allocate);
	if (!step.walk)
		return 0;
	step.walk->frame = find_top_frame(&step, thread, task, slot);
	if (!step.walk->frame)
		return 0;
	begin_walk(step.walk, task, slot);
	step.known = known_codes(step.walk, walker, slot);
	stack = &step.walk->stack;
	if (has_bpf_loop)
		bpf_loop(PYTHON_FRAMES + MAX_ENTRY_FRAMES, walk_frame, &step, 0);
	else
		for (int i = 0; i < PYTHON_FRAMES + MAX_ENTRY_FRAMES && !walk_frame_once(slot); i++)
			;
	if (step.walk->frame && !stack->flags)
		stack->flags = PYTHON_CUT;
	if (!stack->count && !stack->flags)
		return 0;
	stack->hash = mixed(step.walk->hash, stack->flags);
	if (!is_new_to(step.walk, stack->hash, 0))
		return stack->hash;
	if (bpf_ringbuf_output(&python_stacks, stack, sizeof(*stack),
			       ring_wakeup(&python_stacks, python_stacks_ring_bytes, sizeof(*stack)))) {
		count_drop(DROP_STACKS_RING_FULL, 1);
		bpf_map_delete_elem(&seen_python, &step.walk->seen_key);
		return 0;
	}
	return stack->hash;
}

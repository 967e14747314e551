/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The interpreter's thread of the calling thread, and its innermost Python frame. */
#pragma once
#include "python_walk.h"

#define MAX_THREADS_WALKED 4096
#define MAX_THREADS_WALKED_PLAIN 512 /* without bpf_loop */

/* A thread's innermost frame. `frame`: its word for it, which up to 3.12 is that of the C code's frame. */
INLINE u64 top_frame(struct python_layout *layout, u64 frame)
{
	return layout->has_cframe && frame ? user_word(frame + layout->cframe_frame) : frame;
}

/* Interpreters share operating system threads: the newest one in which this thread has a frame is the one that runs. */
static long search_thread(u32 index, struct python_step *step)
{
	struct python_layout *layout = step->layout;
	struct python_walk *walk = step->walk;

	if (!walk->thread) {
		walk->interpreter = user_word(walk->interpreter + layout->interpreter_next);
		if (!walk->interpreter)
			return 1;
		walk->thread = user_word(walk->interpreter + layout->interpreter_threads);
		return 0;
	}
	if (user_word(walk->thread + layout->thread_id) == walk->self) {
		if (!walk->found)
			walk->found = walk->thread;
		if (top_frame(layout, user_word(walk->thread + layout->thread_frame))) {
			walk->found = walk->thread;
			return 1;
		}
	}
	walk->thread = user_word(walk->thread + layout->thread_next);
	return 0;
}

#define THREAD_WORD(walk, offset) (*(u64 *)((u8 *)(walk)->thread_bytes + THREAD_OFFSET(offset)))

#define INTERPRETER_WORD(walk, layout, offset)                                                                         \
	(*(u64 *)((u8 *)(walk)->interpreter_bytes + INTERPRETER_OFFSET((offset) - (layout)->interpreter_next)))

/* Whether the newest interpreter is the only one. Leaves it in `interpreter_bytes`. */
INLINE bool is_alone(struct python_layout *layout, struct python_walk *walk)
{
	u64 from = walk->interpreter + layout->interpreter_next;
	u32 bytes = layout->interpreter_freed ? COUNTING_BYTES : INTERPRETER_BYTES;

	return !bpf_probe_read_user(walk->interpreter_bytes, bytes, (void *)from) && !walk->interpreter_bytes[0];
}

/* The newest thread of the interpreter that was read. */
INLINE u64 first_thread(struct python_layout *layout, struct python_walk *walk)
{
	return INTERPRETER_WORD(walk, layout, layout->interpreter_threads);
}

/*
 * Whether a thread found earlier is still this one's, and still in its interpreter's list. Leaves it in `thread_bytes`.
 */
INLINE bool is_still(struct python_layout *layout, struct python_walk *walk, u64 thread)
{
	u64 previous;

	if (bpf_probe_read_user(walk->thread_bytes, THREAD_BYTES, (void *)thread) ||
	    THREAD_WORD(walk, layout->thread_id) != walk->self)
		return false;
	previous = THREAD_WORD(walk, layout->thread_previous);
	return (previous ? user_word(previous + layout->thread_next) : first_thread(layout, walk)) == thread;
}

GLOBAL int search_thread_once(u32 slot)
{
	struct python_step step;

	return walks_python && own_step(&step, slot) ? search_thread(0, &step) : 1;
}

/* How many code objects a program has freed whose interpreter does not count them: before a frame of it is read. */
INLINE void count_freed(struct python_walk *walk, u32 slot)
{
	struct freed_code *freed = bpf_map_lookup_elem(&freed_codes, &slot);
	struct process *process = bpf_map_lookup_elem(&processes, &slot);

	if (!freed || !process || !freed->image || freed->image != image_of(process))
		return;
	walk->counts_freed = 1;
	walk->freed = READ_ONCE(freed->count);
}

/* The innermost frame of a thread, 0 if it has none. */
INLINE u64 find_top_frame(struct python_step *step, struct thread *thread, struct task_struct *task, u32 slot)
{
	struct python_layout *layout = step->layout;
	struct python_walk *walk = step->walk;

	walk->self = THREAD_POINTER(task) + layout->thread_bias;
	walk->interpreter = user_word(layout->runtime + layout->interpreters);
	walk->found = 0;
	walk->counts_freed = 0;
	if (!walk->interpreter)
		return 0;
	if (!layout->interpreter_freed)
		count_freed(walk, slot);
	if (thread->python_thread && is_alone(layout, walk) && is_still(layout, walk, thread->python_thread)) {
		if (layout->interpreter_freed) {
			walk->counts_freed = 1;
			walk->freed = INTERPRETER_WORD(walk, layout, layout->interpreter_freed);
		}
		return top_frame(layout, THREAD_WORD(walk, layout->thread_frame));
	}
	walk->thread = user_word(walk->interpreter + layout->interpreter_threads);
	if (has_bpf_loop)
		bpf_loop(MAX_THREADS_WALKED, search_thread, step, 0);
	else
		for (int i = 0; i < MAX_THREADS_WALKED_PLAIN && !search_thread_once(slot); i++)
			;
	thread->python_thread = walk->found;
	return walk->found ? top_frame(layout, user_word(walk->found + layout->thread_frame)) : 0;
}

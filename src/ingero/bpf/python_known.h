/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * The code objects that a thread's walks have met, by address: from 3.14 on an interpreter counts those that it frees,
 * for an older one code_freed() does. As long as none was freed, an address identifies the code object, and nothing of
 * it has to be read again.
 */
#pragma once
#include "python_walk.h"

struct known_code {
	u64 code;
	u64 key;
	s32 first_line;
	u32 sync_interval; /* when this was true */
};

struct known_codes {
	u64 image; /* the program that the thread ran */
	u64 freed; /* code objects, when this generation began */
	u32 sync_interval; /* starts over with each of these; 0: none yet */
	u32 pad;
	struct known_code at[1 << CODE_PLACE_BITS];
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_TASK_STORAGE);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct known_codes);
} known_python_codes MAP;

/* Those of the calling thread, in the generation of this walk; NULL: addresses identify nothing. */
INLINE struct known_codes *known_codes(struct python_walk *walk, struct task_struct *task, u32 slot)
{
	struct process *process = bpf_map_lookup_elem(&processes, &slot);
	struct known_codes *known;

	if (!walk->counts_freed || !process)
		return NULL;
	known = bpf_task_storage_get(&known_python_codes, task, NULL,
				     walk->may_allocate ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	if (known && (!known->sync_interval || known->freed != walk->freed || known->image != image_of(process))) {
		known->sync_interval++;
		known->freed = walk->freed;
		known->image = image_of(process);
	}
	return known;
}

INLINE bool is_known_as(struct known_codes *known, struct known_code *at, u64 code)
{
	return at->code == code && at->sync_interval == known->sync_interval;
}

/* What is known of the code object at an address; NULL: nothing that is still valid. */
INLINE struct known_code *known_code(struct known_codes *known, u64 code)
{
	u32 place = CODE_PLACE(code);

	if (!known)
		return NULL;
	if (is_known_as(known, &known->at[place], code))
		return &known->at[place];
	return is_known_as(known, &known->at[place ^ 1], code) ? &known->at[place ^ 1] : NULL;
}

/* A frame's code object was read, and the agent has it. What was in its place moves to the next one. */
INLINE void note_known(struct known_codes *known, const struct python_frame *frame)
{
	u32 place = CODE_PLACE(frame->code);
	struct known_code *at;

	if (!known)
		return;
	at = &known->at[place];
	known->at[place ^ 1] = *at;
	at->code = frame->code;
	at->key = frame->key;
	at->first_line = frame->first_line;
	at->sync_interval = known->sync_interval;
}

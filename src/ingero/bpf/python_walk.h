/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* What the walk of a thread's Python frames uses: its memory, and where the interpreter keeps what it reads. */
#pragma once
#include "clocks.h"
#include "seen.h"

#define PAGE_BYTES 4096
/*
 * What is read at once: a read costs 70 ns here, and 1 ns for each 100 bytes. Interpreters that need more are refused
 * by discover/python_layouts.py.
 */
#define INTERPRETER_BYTES 96 /* from its link to the next one on */
#define COUNTING_BYTES 768 /* the same, where it counts the code objects it frees */
#define THREAD_BYTES 192
#define FRAME_BYTES 112
#define KEY_WORDS 16	 /* of a code object: those after its header, up to its line table */
#define TABLE_WORDS 6	 /* of a line table: its size, its hash, and the first characters */
#define CODE_PLACE_BITS 8
/* so that the verifier sees that they are */
#define INTERPRETER_OFFSET(offset) ((offset) & 1023)
#define THREAD_OFFSET(offset) ((offset) & 255)
#define FRAMES_OFFSET(offset) ((offset) & (PAGE_BYTES - 1))
#define FRAME_OFFSET(offset) ((offset) & 127)
#define KEY_OFFSET(offset) ((offset) & 127)

const volatile u32 has_bpf_loop = 0;
/* 0: the agent reads Python frames from outside, and the verifier does not have to check the walk */
const volatile u32 walks_python = 1;

INLINE u64 user_word(u64 address)
{
	u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)address);
	return word;
}

/* Programs can be preempted, so a walk's memory belongs to the thread and not to the CPU. */
struct python_walk {
	u64 thread; /* the search for the interpreter's thread */
	u64 interpreter;
	u64 self; /* pthread_self(): the same in every PID namespace, and after fork */
	u64 found;
	u64 frame;
	u64 hash;
	u64 freed; /* code objects so far, if `counts_freed` */
	u64 frames_at;	  /* the address of `frame_bytes` in the process */
	u64 frames_below; /* up to here in `frame_bytes` a frame can begin */
	union {
		struct { /* before the walk */
			u64 interpreter_bytes[129]; /* COUNTING_BYTES are read, 1023 + 8 can be asked for */
			u64 thread_bytes[33];	   /* THREAD_BYTES are read, 255 + 8 can be asked for */
		};
		u64 frame_bytes[529]; /* a page and FRAME_BYTES are read, 4095 + 127 + 8 can be asked for */
	};
	u64 code_type; /* read with what follows it: the last word of every object's header */
	u64 key_words[KEY_WORDS + 1]; /* 127 + 8 can be asked for */
	u64 table_words[TABLE_WORDS];
	u8 frame_of[1 << CODE_PLACE_BITS]; /* the last frame whose code object has this place, by its address */
	struct seen_key seen_key; /* here: nested functions may use 512 bytes of stack together before 6.13 */
	u32 sent; /* number of frames in `stack`, as left by the last walk, whose code object was sent */
	u32 sent_now;
	u32 counts_freed;
	u32 may_allocate; /* not with a run queue locked */
	struct python_stack_record stack;
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_TASK_STORAGE);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct python_walk);
} python_walks MAP;

/*
 * Of the code object at an address; those of a module lie at regular distances, which a product alone would preserve.
 */
#define CODE_PLACE(address) (((address) ^ (address) >> 11) * 0x9E3779B97F4A7C15ULL >> (64 - CODE_PLACE_BITS))

struct known_codes;

/* What a step of a loop receives: by bpf_loop directly, else looked up again in a function of its own. */
struct python_step {
	struct python_layout *layout;
	struct python_walk *walk;
	struct known_codes *known; /* NULL: each code object has to be read */
};

INLINE bool own_step(struct python_step *step, u32 slot)
{
	slot &= MAX_PROCESSES - 1;
	step->walk = bpf_task_storage_get(&python_walks, bpf_get_current_task_btf(), NULL, 0);
	step->layout = bpf_map_lookup_elem(&python_layouts, &slot);
	return step->walk && step->layout;
}

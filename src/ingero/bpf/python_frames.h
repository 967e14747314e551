/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * The Python frames of the calling thread, walked in its interpreter's memory at the return of a recorded call or at a
 * sample: the line that is executing, not where a function begins. Everything is read from a live process and may be
 * wrong at any moment: a frame counts only if its code object says that it is one.
 *
 * A stack, and a code object, is sent once; later calls carry its hash. Code objects are told apart by their content:
 * a freed one's address is used again at once.
 */
#pragma once
#include "clocks.h"

#define FRAME_BYTES 112
#define CODE_BYTES 160
#define FRAME_OFFSET(offset) ((offset) & 127) /* as the verifier must see that it is */
#define CODE_OFFSET(offset) ((offset) & 255)
#define MAX_ENTRY_FRAMES PYTHON_FRAMES /* of the C code between Python frames: perf trampolines put one before each */
#define MAX_THREADS_WALKED 4096
#define MAX_THREADS_WALKED_PLAIN 512 /* without bpf_loop */
#define KEY_WORDS 20
#define TABLE_BEGINNING_WORDS 4
#define TABLE_BYTES 48 /* size and first words of a line table: PyBytesObject without its header */
#define FNV_BASIS 0xcbf29ce484222325ULL
#define FNV_PRIME 0x100000001b3ULL

const volatile u32 has_bpf_loop = 0;
/* 0: the agent reads Python frames from outside, and no verifier has to judge what would walk them here */
const volatile u32 walks_python = 1;
const volatile u64 python_code_ring_bytes = 1 << 20;
const volatile u64 python_stacks_ring_bytes = 1 << 20;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} python_stacks MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} python_code MAP;

struct seen_key {
	u64 hash;
	u64 address; /* of the code object; 0 for a stack */
	u32 pid;
	u32 pad;
};

/* what has been sent; what falls out is sent again. A large program has 20,000 code objects, a few hundred on stacks. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 1 << 15);
	MAP_TYPE(key, struct seen_key);
	MAP_TYPE(value, u8);
} seen_python MAP;

INLINE u64 mixed(u64 hash, u64 word)
{
	hash = (hash ^ word) * FNV_PRIME;
	return hash ^ hash >> 29;
}

INLINE u64 user_word(u64 address)
{
	u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)address);
	return word;
}

INLINE bool is_known(u64 hash, u64 address, u32 pid)
{
	struct seen_key key = {.hash = hash, .address = address, .pid = pid};

	return bpf_map_lookup_elem(&seen_python, &key);
}

/* Whether `seen_python` lacks this; it has it from now on. */
INLINE bool is_new(u64 hash, u64 address, u32 pid)
{
	struct seen_key key = {.hash = hash, .address = address, .pid = pid};
	u8 yes = 1;

	if (bpf_map_lookup_elem(&seen_python, &key))
		return false;
	bpf_map_update_elem(&seen_python, &key, &yes, BPF_ANY);
	return true;
}

INLINE void forget_seen(u64 hash, u64 address, u32 pid)
{
	struct seen_key key = {.hash = hash, .address = address, .pid = pid};

	bpf_map_delete_elem(&seen_python, &key);
}

/* A walk's memory. Programs can be preempted, so it belongs to the thread and not to the CPU. */
struct python_walk {
	u64 thread; /* the search for the interpreter's thread */
	u64 interpreter;
	u64 self; /* pthread_self(): the same in every PID namespace, and after fork */
	u64 found;
	u64 frame;
	u64 hash;
	u64 frame_bytes[17]; /* FRAME_BYTES are read; 127 + 8 can be asked for */
	u64 code_bytes[33];  /* CODE_BYTES are read; 255 + 8 can be asked for */
	u64 table_bytes[17]; /* TABLE_BYTES are read; 127 + 8 can be asked for */
	u32 sent;	     /* of the frames in `stack` as the last walk left it: so many have a code object that was sent */
	u32 sent_now;
	struct python_stack_record stack;
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_TASK_STORAGE);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct python_walk);
} python_walks MAP;

/* What a step of a loop is given: by bpf_loop directly, else looked up again in a function of its own. */
struct python_step {
	struct python_layout *layout;
	struct python_walk *walk;
};

INLINE u64 top_frame(struct python_layout *layout, u64 thread)
{
	u64 frame = user_word(thread + layout->thread_frame);

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
		if (top_frame(layout, walk->thread)) {
			walk->found = walk->thread;
			return 1;
		}
	}
	walk->thread = user_word(walk->thread + layout->thread_next);
	return 0;
}

/* Whether a thread found earlier is still this one's, and still in its interpreter's list. */
INLINE bool is_still(struct python_layout *layout, u64 thread, u64 self)
{
	u64 previous, back;

	if (user_word(thread + layout->thread_id) != self)
		return false;
	previous = user_word(thread + layout->thread_previous);
	back = previous ? user_word(previous + layout->thread_next) :
			  user_word(user_word(thread + layout->thread_interpreter) + layout->interpreter_threads);
	return back == thread;
}

INLINE bool own_step(struct python_step *step, u32 slot)
{
	slot &= MAX_PROCESSES - 1;
	step->walk = bpf_task_storage_get(&python_walks, bpf_get_current_task_btf(), NULL, 0);
	step->layout = bpf_map_lookup_elem(&python_layouts, &slot);
	return step->walk && step->layout;
}

GLOBAL int search_thread_once(u32 slot)
{
	struct python_step step;

	return walks_python && own_step(&step, slot) ? search_thread(0, &step) : 1;
}

INLINE u64 find_python_thread(struct python_step *step, struct thread *thread, struct task_struct *task, u32 slot)
{
	struct python_layout *layout = step->layout;
	struct python_walk *walk = step->walk;

	walk->self = THREAD_POINTER(task) + layout->thread_bias;
	walk->interpreter = user_word(layout->runtime + layout->interpreters);
	walk->found = 0;
	if (!walk->interpreter)
		return 0;
	if (thread->python_thread && !user_word(walk->interpreter + layout->interpreter_next) &&
	    is_still(layout, thread->python_thread, walk->self))
		return thread->python_thread;
	walk->thread = user_word(walk->interpreter + layout->interpreter_threads);
	if (has_bpf_loop)
		bpf_loop(MAX_THREADS_WALKED, search_thread, step, 0);
	else
		for (int i = 0; i < MAX_THREADS_WALKED_PLAIN && !search_thread_once(slot); i++)
			;
	thread->python_thread = walk->found;
	return walk->found;
}

struct string_place {
	u64 length;
	u32 state;
	u32 is_unreadable;
};

/* The characters of a string object, raw. */
INLINE void read_string(struct python_layout *layout, u64 address, struct string_place *place, u8 *to, u32 limit)
{
	u64 bytes, data;
	u32 kind, is_ascii;

	place->length = 0;
	place->state = 0;
	place->is_unreadable = 1;
	if (bpf_probe_read_user(&place->state, sizeof(place->state), (void *)(address + layout->string_state)) ||
	    bpf_probe_read_user(&place->length, sizeof(place->length), (void *)(address + layout->string_length)))
		return;
	kind = place->state >> (layout->string_state_shift & 31);
	is_ascii = kind >> 4 & 1;
	kind &= 7;
	data = address + (is_ascii ? layout->string_ascii_data : layout->string_wide_data);
	bytes = place->length * kind;
	if (bytes > limit)
		bytes = limit;
	place->is_unreadable = bytes && bpf_probe_read_user(to, bytes, (void *)data) ? 1 : 0;
}

/* Sends what a code object is called, where it is from, and its line table. Returns whether it could. */
static __attribute__((noinline)) int send_code(struct python_layout *layout, struct python_frame *frame, u64 name,
					       u64 line_table, u32 pid_and_slot)
{
	struct string_place file, function;
	struct python_code_record *record;
	u64 bytes = 0;

	if (!layout || !frame)
		return 0;
	record = bpf_ringbuf_reserve(&python_code, sizeof(*record), 0);
	if (!record) {
		count_loss(LOSS_PYTHON_CODE_RING_FULL, 1);
		return 0;
	}
	record->key = frame->key;
	record->code = frame->code;
	record->first_line = frame->first_line;
	record->pid = bpf_get_current_pid_tgid() >> 32;
	record->process_slot = pid_and_slot;
	__builtin_memset(record->pad, 0, sizeof(record->pad));
	read_string(layout, user_word(frame->code + layout->code_filename), &file, record->file, PYTHON_FILE_BYTES);
	read_string(layout, name, &function, record->name, PYTHON_NAME_BYTES);
	record->file_state = file.state;
	record->file_length = file.length;
	record->name_state = function.state;
	record->name_length = function.length;
	record->flags = file.is_unreadable || function.is_unreadable ? PYTHON_CODE_UNREADABLE : 0;
	if (bpf_probe_read_user(&bytes, sizeof(bytes), (void *)(line_table + layout->bytes_size)))
		record->flags |= PYTHON_CODE_UNREADABLE;
	record->table_bytes = bytes;
	if (bytes > PYTHON_TABLE_BYTES)
		bytes = PYTHON_TABLE_BYTES;
	if (bytes && bpf_probe_read_user(record->table, bytes, (void *)(line_table + layout->bytes_data)))
		record->flags |= PYTHON_CODE_UNREADABLE;
	bpf_ringbuf_submit(record, ring_wakeup(&python_code, python_code_ring_bytes, sizeof(*record)));
	return 1;
}

#define CODE_WORD(code, offset) (*(u64 *)((code) + CODE_OFFSET(offset)))

/* Adds how long a line table is, and its beginning: one read, unless it lies at the very end of its memory. */
INLINE u64 mixed_table(struct python_layout *layout, struct python_walk *walk, u64 hash, u64 line_table)
{
	u8 *table = (u8 *)walk->table_bytes;
	u64 data = layout->bytes_data - layout->bytes_size;

	if (data > TABLE_BYTES - 8 * TABLE_BEGINNING_WORDS ||
	    bpf_probe_read_user(table, TABLE_BYTES, (void *)(line_table + layout->bytes_size))) {
		hash = mixed(hash, user_word(line_table + layout->bytes_size));
		for (u32 i = 0; i < TABLE_BEGINNING_WORDS; i++)
			hash = mixed(hash, user_word(line_table + layout->bytes_data + 8 * i));
		return hash;
	}
	hash = mixed(hash, *(u64 *)table);
	for (u32 i = 0; i < TABLE_BEGINNING_WORDS; i++)
		hash = mixed(hash, *(u64 *)(table + FRAME_OFFSET(data + 8 * i)));
	return hash;
}

/* A hash of the constant part of a code object. */
INLINE u64 code_key(struct python_layout *layout, struct python_walk *walk, u64 line_table)
{
	u8 *code = (u8 *)walk->code_bytes;
	u32 first = layout->header_bytes / 8, last = layout->code_line_table / 8;
	u64 hash = FNV_BASIS;

	for (u32 i = 2; i < KEY_WORDS; i++) {
		u64 word = *(u64 *)(code + 8 * i);

		if (i < first || i > last)
			continue;
		if (i == layout->key_half_word)
			word &= 0xffffffff;
		hash = mixed(hash, word);
	}
	if (layout->is_key_short)
		hash = mixed_table(layout, walk, hash, line_table);
	return hash ? hash : 1;
}

/* Where in its code a frame is. */
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

/* Adds a frame and goes to the one that called it. Returns 1 at the end. */
static long walk_frame(u32 index, struct python_step *step)
{
	struct python_layout *layout = step->layout;
	struct python_walk *walk = step->walk;
	struct python_stack_record *stack = &walk->stack;
	u8 *frame = (u8 *)walk->frame_bytes, *code = (u8 *)walk->code_bytes;
	struct python_frame *to;
	u64 address, line_table, key;
	u32 count = stack->count;
	bool is_sent;

	if (!walk->frame)
		return 1;
	if (count >= PYTHON_FRAMES) {
		stack->flags |= PYTHON_CUT;
		return 1;
	}
	if (bpf_probe_read_user(frame, FRAME_BYTES, (void *)walk->frame)) {
		stack->flags |= PYTHON_UNREADABLE;
		return 1;
	}
	address = *(u64 *)(frame + FRAME_OFFSET(layout->frame_code)) & ~7ULL; /* 3.14 tags references */
	walk->frame = *(u64 *)(frame + FRAME_OFFSET(layout->frame_previous));
	if (layout->has_owner && frame[FRAME_OFFSET(layout->frame_owner)] >= layout->owner_skipped)
		return 0;
	if (!address || address == layout->none)
		return 0;
	if (bpf_probe_read_user(code, CODE_BYTES, (void *)address)) {
		stack->flags |= PYTHON_UNREADABLE;
		return 1;
	}
	if (CODE_WORD(code, layout->header_bytes - 8) != layout->code_type) {
		stack->flags |= PYTHON_NOT_CODE;
		return 1;
	}
	line_table = CODE_WORD(code, layout->code_line_table);
	to = &stack->frame[count & (PYTHON_FRAMES - 1)];
	key = code_key(layout, walk, line_table);
	/* mostly this is the frame that the last walk found here */
	is_sent = count < walk->sent && to->key == key && to->code == address;
	to->code = address;
	to->key = key;
	to->instruction = instruction_of(layout, frame, address);
	to->first_line = *(s32 *)(code + CODE_OFFSET(layout->code_first_line));
	if (!is_sent) {
		is_sent = !is_new(key, address, stack->pid) ||
			  send_code(layout, to, CODE_WORD(code, layout->code_name), line_table, stack->process_slot);
		if (!is_sent)
			forget_seen(key, address, stack->pid);
	}
	if (is_sent && walk->sent_now == count)
		walk->sent_now = count + 1;
	walk->hash = mixed(mixed(walk->hash, to->key), (u32)to->instruction);
	stack->count = count + 1;
	return 0;
}

GLOBAL int walk_frame_once(u32 slot)
{
	struct python_step step;

	return walks_python && own_step(&step, slot) ? walk_frame(0, &step) : 1;
}

/* The hash of the calling thread's Python stack, 0 if it has none. A stack not seen before is sent. */
INLINE u64 capture_python(struct thread *thread, struct task_struct *task, u32 slot)
{
	struct python_stack_record *stack;
	struct python_step step;
	u64 python_thread;

	if (!walks_python)
		return 0;
	step.layout = bpf_map_lookup_elem(&python_layouts, &slot);
	if (!step.layout || !step.layout->runtime)
		return 0;
	step.walk = bpf_task_storage_get(&python_walks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!step.walk) {
		count_loss(LOSS_THREAD_STORAGE_FAILED, 1);
		return 0;
	}
	python_thread = find_python_thread(&step, thread, task, slot);
	if (!python_thread)
		return 0;
	step.walk->frame = top_frame(step.layout, python_thread);
	step.walk->hash = FNV_BASIS;
	step.walk->sent = step.walk->stack.pid == (u32)task->tgid ? step.walk->sent_now : 0;
	step.walk->sent_now = 0;
	stack = &step.walk->stack;
	stack->pid = task->tgid;
	stack->tid = task->pid;
	stack->process_slot = slot;
	stack->count = 0;
	stack->flags = 0;
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
	if (!is_new(stack->hash, 0, stack->pid))
		return stack->hash;
	if (bpf_ringbuf_output(&python_stacks, stack, sizeof(*stack),
			       ring_wakeup(&python_stacks, python_stacks_ring_bytes, sizeof(*stack)))) {
		count_loss(LOSS_STACKS_RING_FULL, 1);
		forget_seen(stack->hash, 0, stack->pid);
		return 0;
	}
	return stack->hash;
}

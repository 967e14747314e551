/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Code objects: identified by their content, because a freed one's address is reused at once; and sent, each once. */
#pragma once
#include "python_walk.h"
#include "seen.h"

#define HALF_WORD 4 /* of the key's words: in 3.11 its upper half counts down */

const volatile u64 python_code_ring_bytes = 1 << 20;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} python_code MAP;

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

/* Sends a code object's name, its file, and its line table. Returns whether it could. */
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
		count_drop(DROP_PYTHON_CODE_RING_FULL, 1);
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

/* What was read of a code object, by its place there. */
#define CODE_AT(layout, walk, offset) ((u8 *)(walk)->key_words + KEY_OFFSET((offset) - (layout)->header_bytes))
#define CODE_WORD(layout, walk, offset) (*(u64 *)CODE_AT(layout, walk, offset))

/* Reads the type of a code object and what its key is made of; words after that stay 0. Returns whether it could. */
INLINE bool read_code(struct python_layout *layout, struct python_walk *walk, u64 address)
{
	u64 from = layout->header_bytes - sizeof(u64), bytes = layout->code_line_table + sizeof(u64) - from;

	if (bytes > sizeof(walk->code_type) + KEY_WORDS * sizeof(u64))
		return false;
	return !bpf_probe_read_user(&walk->code_type, bytes, (void *)(address + from));
}

/* Reads the length and the start of a line table: at once, unless it lies at the very end of its memory. */
INLINE void read_table(struct python_layout *layout, struct python_walk *walk, u64 line_table)
{
	u64 from = line_table + layout->bytes_size;

	if (bpf_probe_read_user(walk->table_words, sizeof(walk->table_words), (void *)from))
		for (u32 i = 0; i < TABLE_WORDS; i++)
			walk->table_words[i] = user_word(from + 8 * i);
}

INLINE u64 key_word(struct python_layout *layout, struct python_walk *walk, u32 index)
{
	u64 word = walk->key_words[index];

	return index == HALF_WORD && layout->has_half_word ? (u32)word : word;
}

/* A hash of the constant part of the code object that was read; decode/python_code.py computes the same. */
INLINE u64 code_key(struct python_layout *layout, struct python_walk *walk, u64 line_table)
{
	u64 *table = walk->table_words, hash = FNV_BASIS;

#pragma unroll
	for (u32 i = 0; i < KEY_WORDS; i++)
		hash = mixed(hash, key_word(layout, walk, i));
	if (layout->is_key_short) {
		read_table(layout, walk, line_table);
		hash = mixed(hash, table[0]);
#pragma unroll
		for (u32 i = 2; i < TABLE_WORDS; i++)
			hash = mixed(hash, table[i]);
	}
	return hash ? hash : 1;
}

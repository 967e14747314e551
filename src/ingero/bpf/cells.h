/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Exact sums per (process, operation, caller), in arrays that the agent maps.
 *
 * Open addressing by compare-and-swap on an exact key: hash maps cannot be mapped, spin locks are refused in uprobe
 * programs, and per-CPU additions lose counts when preempted. The keys are in an array of their own, so that the agent
 * finds the used cells without touching the memory of the others. It may clear cells of ended processes at any time: a
 * key that then gets a second cell is still summed exactly, because the agent adds up cells with equal keys.
 */
#pragma once
#include "maps.h"

#define CELL_PROBES 8
#define NO_CELL (~0U)
#define CELL_OP_SHIFT 46
/*
 * User addresses differ below bit 47 on x86-64 and arm64. Of two that differ in bit 46 alone, the second counts with
 * the first: one of a program at a low address, and one 64 TiB above it.
 */
#define CALLER_MASK ((1ULL << CELL_OP_SHIFT) - 1)

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, 4096); /* (agent), a power of two */
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64); /* slot << SLOT_SHIFT | (op + 1) << CELL_OP_SHIFT | caller */
} cell_keys MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, 4096); /* (agent), as cell_keys */
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct cell);
} cells MAP;

const volatile u32 cell_count = 4096;

#define MOST_BYTES (1ULL << 44) /* no host has more: a larger size is the caller's mistake */

/* What one call adds to a sum of bytes: a million mistakes must not overflow a sum. */
INLINE u64 summed_bytes(u64 size_bytes)
{
	return size_bytes < MOST_BYTES ? size_bytes : MOST_BYTES;
}

/*
 * Fibonacci hashing: 2^64 / golden ratio. Bits of a product depend only on lower bits of the key, so its upper half,
 * with the slot, is folded in: forked processes call from the same addresses and would all want the same cells.
 */
INLINE u32 hash_of(u64 key)
{
	return (key ^ key >> 32) * 0x9E3779B97F4A7C15ULL >> 40;
}

/* Claims *place for key; false if another key has it. */
INLINE bool claim(u64 *place, u64 key)
{
	u64 found = READ_ONCE(*place);

	if (likely(found == key))
		return true;
	if (found)
		return false;
	found = __sync_val_compare_and_swap(place, 0, key);
	return found == 0 || found == key;
}

INLINE u64 cell_key(u32 slot, u32 op, u64 caller)
{
	return (u64)slot << SLOT_SHIFT | (u64)(op + 1) << CELL_OP_SHIFT | (caller & CALLER_MASK);
}

INLINE u32 claim_cell(u64 key, u64 caller)
{
	u32 hash = hash_of(key);

	for (u32 i = 0; i < CELL_PROBES; i++) {
		u32 index = (hash + i) & (cell_count - 1);
		u64 *place = bpf_map_lookup_elem(&cell_keys, &index);
		struct cell *cell;

		if (!place)
			return NO_CELL;
		if (!claim(place, key))
			continue;
		cell = bpf_map_lookup_elem(&cells, &index);
		if (cell && cell->key != key) {
			cell->caller = caller;
			cell->key = key;
		}
		return index;
	}
	return NO_CELL;
}

/* The index of a cell that is not in the first place for its key, or that is new. */
GLOBAL u32 search_cell(u64 key, u64 caller)
{
	u32 index = claim_cell(key, caller);

	if (likely(index != NO_CELL))
		return index;
	count_drop(DROP_CELLS_FULL, 1);
	index = claim_cell(key & ~CALLER_MASK, 0);
	if (index == NO_CELL)
		count_drop(DROP_CELLS_EXHAUSTED, 1);
	return index;
}

/* Nearly always in its first place, where the cell itself holds its key: `cell_keys` would be one more cache line. */
INLINE struct cell *cell_of(u32 slot, u32 op, u64 caller)
{
	u64 key = cell_key(slot, op, caller);
	u32 index = hash_of(key) & (cell_count - 1);
	struct cell *cell = bpf_map_lookup_elem(&cells, &index);

	if (likely(cell && READ_ONCE(cell->key) == key))
		return cell;
	index = search_cell(key, caller);
	return bpf_map_lookup_elem(&cells, &index); /* NULL for NO_CELL */
}

GLOBAL int raise_at(u64 *place, u64 value)
{
	if (!place)
		return 0;
	for (int try = 0; try < 4; try++) {
		u64 found = READ_ONCE(*place);

		if (found >= value || __sync_val_compare_and_swap(place, found, value) == found)
			break;
	}
	return 0;
}

INLINE void raise_to(u64 *place, u64 value)
{
	if (READ_ONCE(*place) < value)
		raise_at(place, value);
}

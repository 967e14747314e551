/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Exact launches per (process, kernel function, caller), in an array that the agent maps, like those of cells.h.
 *
 * `function` is the address of a host stub, or a handle. A handle may belong to another kernel once its module is
 * unloaded: kernel_names.bpf.c counts a handle's kernels, and launches are counted per such generation.
 */
#pragma once
#include "cells.h"

#define KERNEL_VALID (1ULL << (SLOT_SHIFT - 1))
#define KERNEL_MASK (KERNEL_VALID - 1)
#define KERNEL_HANDLES (1 << 15)

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, 4096); /* (agent), a power of two */
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct kernel_cell);
} kernels MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, KERNEL_HANDLES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct kernel_handle);
} kernel_handles MAP;

const volatile u32 kernel_count = 4096;

INLINE u64 kernel_handle_key(u32 slot, u64 handle)
{
	return (u64)slot << SLOT_SHIFT | KERNEL_VALID | (handle & KERNEL_MASK);
}

/* The agent clears the handles of ended processes, so an empty place does not end the search. */
INLINE struct kernel_handle *find_kernel_handle(u64 key)
{
	u32 hash = hash_of(key);

	for (u32 i = 0; i < CELL_PROBES; i++) {
		u32 index = (hash + i) & (KERNEL_HANDLES - 1);
		struct kernel_handle *handle = bpf_map_lookup_elem(&kernel_handles, &index);

		if (handle && READ_ONCE(handle->key) == key)
			return handle;
	}
	return NULL;
}

GLOBAL u64 generation_of(u64 key)
{
	struct kernel_handle *handle = find_kernel_handle(key);

	return handle ? READ_ONCE(handle->generation) : 0;
}

INLINE u64 kernel_generation(u32 slot, u64 function)
{
	struct process *process = bpf_map_lookup_elem(&processes, &slot);

	if (!process || !process->has_kernel_handles)
		return 0;
	return generation_of(kernel_handle_key(slot, function));
}

/* 53 bits for all three: the probability that two of 16,000 triples share a key is 1.5e-8. */
INLINE u64 kernel_key(u32 slot, u64 function, u64 caller, u64 generation)
{
	u64 mixed = (function ^ generation << 48) * 0x9E3779B97F4A7C15ULL;

	mixed = (mixed ^ mixed >> 29 ^ caller) * 0xBF58476D1CE4E5B9ULL;
	return (u64)slot << SLOT_SHIFT | KERNEL_VALID | ((mixed ^ mixed >> 32) & KERNEL_MASK);
}

/* Counts a launch that is not in the first place for its key, or that is new. */
GLOBAL int search_kernel(u64 key, u64 function, u64 caller, u64 generation)
{
	u32 hash = hash_of(key);

	for (u32 i = 0; i < CELL_PROBES; i++) {
		u32 index = (hash + i) & (kernel_count - 1);
		struct kernel_cell *cell = bpf_map_lookup_elem(&kernels, &index);

		if (!cell)
			return 0;
		if (claim(&cell->key, key)) {
			if (unlikely(!cell->function)) {
				cell->caller = caller;
				cell->generation = generation;
				WRITE_ONCE(cell->function, function);
			}
			__sync_fetch_and_add(&cell->count, 1);
			return 0;
		}
	}
	count_drop(DROP_KERNEL_CELLS_FULL, 1);
	return 0;
}

INLINE void count_kernel(u32 slot, u64 function, u64 caller)
{
	u64 generation = kernel_generation(slot, function);
	u64 key = kernel_key(slot, function, caller, generation);
	u32 index = hash_of(key) & (kernel_count - 1);
	struct kernel_cell *cell = bpf_map_lookup_elem(&kernels, &index);

	if (likely(cell && READ_ONCE(cell->key) == key && cell->function))
		__sync_fetch_and_add(&cell->count, 1);
	else
		search_kernel(key, function, caller, generation);
}

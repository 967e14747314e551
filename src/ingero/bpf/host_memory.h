/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Which host memory is pinned: the blocks in use of each process that were seen allocated or registered. Copies look up
 * whether their host address lies in one, which the table of allocations, by exact address, cannot tell.
 */
#pragma once
#include "maps.h"
#include "ops_gen.h"

/* Blocks of one process: PyTorch keeps about ten, of sizes that are powers of two; 256 KB in total. A power of two. */
#define HOST_BLOCKS 64

struct host_block {
	u64 begin; /* 0: free */
	u64 end;   /* 0: being claimed */
};

struct host_blocks {
	u64 image; /* image_of the program that they belong to */
	u32 is_cut; /* there were more than fit */
	u32 pad;
	struct host_block block[HOST_BLOCKS];
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, MAX_PROCESSES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct host_blocks);
} host_blocks MAP;

/* The blocks of the running program; those of the previous one are forgotten. */
INLINE struct host_blocks *blocks_of(u32 slot, const struct process *process)
{
	struct host_blocks *blocks = bpf_map_lookup_elem(&host_blocks, &slot);
	u64 image = image_of(process);

	if (blocks && READ_ONCE(blocks->image) != image) {
		for (int i = 0; i < HOST_BLOCKS; i++)
			blocks->block[i].begin = blocks->block[i].end = 0;
		blocks->is_cut = 0;
		blocks->image = image;
	}
	return blocks;
}

/* The blocks of the process that has a slot; NULL where none has. */
INLINE struct host_blocks *blocks_at(u32 slot)
{
	struct process *process;

	slot &= MAX_PROCESSES - 1;
	process = bpf_map_lookup_elem(&processes, &slot);
	return process ? blocks_of(slot, process) : NULL;
}

/* Memory whose copies need not wait: pinned, or managed, which is not ordinary host memory. */
INLINE bool is_block_kind(u32 kind)
{
	return kind == MEMORY_PINNED || kind == MEMORY_MANAGED;
}

GLOBAL int add_host_block(u32 slot, u64 begin, u64 bytes)
{
	struct host_blocks *blocks = blocks_at(slot);

	if (!blocks)
		return 0;
	for (int i = 0; i < HOST_BLOCKS; i++) {
		struct host_block *block = &blocks->block[i];

		if (!READ_ONCE(block->begin) && !__sync_val_compare_and_swap(&block->begin, 0, begin)) {
			WRITE_ONCE(block->end, begin + bytes);
			return 0;
		}
	}
	blocks->is_cut = 1;
	return 0;
}

GLOBAL int drop_host_block(u32 slot, u64 begin)
{
	struct host_blocks *blocks = blocks_at(slot);

	if (!blocks)
		return 0;
	for (int i = 0; i < HOST_BLOCKS; i++) {
		struct host_block *block = &blocks->block[i];

		if (READ_ONCE(block->begin) == begin) {
			WRITE_ONCE(block->end, 0);
			WRITE_ONCE(block->begin, 0);
			return 0;
		}
	}
	return 0;
}

/*
 * What is known of the memory at this host address. It is certainly pageable only if everything that the program has
 * pinned since it began was seen and found a place here.
 */
GLOBAL int host_memory_at(u32 slot, u64 address)
{
	struct process *process;
	struct host_blocks *blocks;

	slot &= MAX_PROCESSES - 1;
	process = bpf_map_lookup_elem(&processes, &slot);
	blocks = process ? blocks_of(slot, process) : NULL;
	if (!blocks || !address)
		return HOST_MEMORY_UNKNOWN;
	for (int i = 0; i < HOST_BLOCKS; i++) {
		const struct host_block *block = &blocks->block[i];

		if (READ_ONCE(block->begin) <= address && address < READ_ONCE(block->end))
			return HOST_MEMORY_PINNED;
	}
	if (blocks->is_cut || process->unpaired || process->program_ns <= process->unseen_ns)
		return HOST_MEMORY_UNKNOWN;
	return HOST_MEMORY_PAGEABLE;
}

/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Which memory is in use: each allocation is remembered from its return to its free, and both are added to the site
 * that made it. Only calls that allocate, free, or map come here; for a launch, one test of its kind excludes this.
 *
 * A free removes its allocation before the driver can give the address to another caller, and puts it back if it fails.
 */
#pragma once
#include "arguments.h"
#include "cells.h"
#include "clocks.h"
#include "host_memory.h"

#define ALLOCATION_SITES 4096 /* 128 processes with 32 each; 512 KB */
#define NO_SITE 0xffffffffu
#define UNMAPPED_AT_ONCE 64 /* mappings that one cuMemUnmap may span; PyTorch unmaps one by one */

struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(max_entries, 1024); /* (agent) */
	MAP_TYPE(key, struct allocation_key);
	MAP_TYPE(value, struct allocation);
} allocations MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, ALLOCATION_SITES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct allocation_site);
} allocation_sites MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, MAX_PROCESSES *MEMORY_KINDS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct memory_total);
} memory_totals MAP;

const volatile u8 memory_kinds[256] = {}; /* by operation; 0: none, or not paired */

struct site_identity {
	u64 caller;
	u64 python_stack;
	u64 native_stack;
	u32 slot;
	u32 execs;
	u32 op;
	u32 pad;
};

INLINE u32 memory_kind(u32 op)
{
	return memory_kinds[op & 0xff] & (MEMORY_KINDS - 1);
}

INLINE struct memory_total *memory_total(u32 slot, u32 kind)
{
	u32 index = slot * MEMORY_KINDS + kind;

	return bpf_map_lookup_elem(&memory_totals, &index);
}

/* The memory in use of this process is no longer exact. */
INLINE void lose_allocation(u32 slot, u32 drop)
{
	struct process *process = bpf_map_lookup_elem(&processes, &slot);

	count_drop(drop, 1);
	if (process)
		__sync_fetch_and_add(&process->unpaired, 1);
}

INLINE u32 execs_of(u32 slot)
{
	struct process *process = bpf_map_lookup_elem(&processes, &slot);

	return process ? process->execs : 0;
}

INLINE struct allocation_key allocation_key(u32 slot, u64 space, u64 address)
{
	struct allocation_key key = {
		.address = address,
		.owner = (u64)slot << SLOT_SHIFT | space << 48 | execs_of(slot),
	};

	return key;
}

INLINE u64 space_of(u32 op)
{
	return memory_kind(op) == MEMORY_MAPPED ? SPACE_HANDLES : SPACE_POINTERS;
}

INLINE u64 site_key(const struct site_identity *of)
{
	u64 hash = (of->caller ^ (u64)of->op << 48) * 0x9E3779B97F4A7C15ULL;

	hash = (hash ^ hash >> 29 ^ of->python_stack) * 0xBF58476D1CE4E5B9ULL;
	hash = (hash ^ hash >> 32 ^ of->native_stack ^ of->execs) * 0x94D049BB133111EBULL;
	return (u64)of->slot << SLOT_SHIFT | 1ULL << (SLOT_SHIFT - 1) | (hash ^ hash >> 32) >> (65 - SLOT_SHIFT);
}

NOINLINE u32 claim_site(const struct site_identity *of)
{
	u64 key = site_key(of);
	u32 hash = hash_of(key);

	for (u32 i = 0; i < CELL_PROBES; i++) {
		u32 index = (hash + i) & (ALLOCATION_SITES - 1);
		struct allocation_site *site = bpf_map_lookup_elem(&allocation_sites, &index);

		if (!site)
			break;
		if (!claim(&site->key, key))
			continue;
		if (!READ_ONCE(site->op)) {
			site->caller = of->caller;
			site->python_stack = of->python_stack;
			site->native_stack = of->native_stack;
			site->execs = of->execs;
			barrier();
			WRITE_ONCE(site->op, of->op);
		}
		return index;
	}
	return NO_SITE;
}

/* If too many sites are known, first the stack is dropped, then the caller. */
INLINE u32 site_index(struct site_identity *of)
{
	u32 index = claim_site(of);

	if (likely(index != NO_SITE))
		return index;
	if (of->python_stack | of->native_stack) {
		of->python_stack = of->native_stack = 0;
		index = claim_site(of);
		if (index != NO_SITE)
			return index;
	}
	count_drop(DROP_ALLOCATION_SITES_FULL, 1);
	of->caller = 0;
	return claim_site(of);
}

INLINE void add_live(struct allocation_site *site, u32 slot, u64 bytes)
{
	struct memory_total *total = memory_total(slot, memory_kind(site->op));

	__sync_fetch_and_add(&site->allocated_bytes, bytes);
	__sync_fetch_and_add(&site->allocations, 1);
	raise_to(&site->peak_bytes, __sync_fetch_and_add(&site->live_bytes, bytes) + bytes);
	if (!total)
		return;
	__sync_fetch_and_add(&total->live_count, 1);
	raise_to(&total->peak_bytes, __sync_fetch_and_add(&total->live_bytes, bytes) + bytes);
}

/* An allocation that was removed from the table is no longer in use. */
INLINE void end_live(const struct allocation *gone, u32 slot)
{
	u32 index = gone->site;
	struct allocation_site *site = bpf_map_lookup_elem(&allocation_sites, &index);
	struct memory_total *total;

	if (!site)
		return;
	__sync_fetch_and_add(&site->freed_bytes, gone->bytes);
	__sync_fetch_and_add(&site->frees, 1);
	__sync_fetch_and_add(&site->live_bytes, -gone->bytes);
	total = memory_total(slot, memory_kind(site->op));
	if (!total)
		return;
	__sync_fetch_and_add(&total->live_count, -1ULL);
	__sync_fetch_and_add(&total->live_bytes, -gone->bytes);
}

/* Removes an allocation from the table; false: another thread already did. */
INLINE bool take_out(const struct allocation_key *key, const struct allocation *found, struct allocation *to)
{
	*to = *found;
	return !bpf_map_delete_elem(&allocations, key);
}

INLINE void begin_live(struct open_call *call, u32 slot, struct site_identity *of, u32 index)
{
	struct allocation_key key = allocation_key(slot, space_of(of->op), call->handle);
	struct allocation made = { .bytes = call->size_bytes, .since_ns = call->start_ns, .site = index, .holds = 1 };
	struct allocation_site *site = bpf_map_lookup_elem(&allocation_sites, &index);
	struct allocation *found = bpf_map_lookup_elem(&allocations, &key), before;

	if (!site)
		return;
	if (unlikely(found) && take_out(&key, found, &before)) {
		end_live(&before, slot); /* its free was not seen, otherwise the address would not be returned again */
		lose_allocation(slot, DROP_ALLOCATIONS_UNPAIRED);
	}
	if (unlikely(bpf_map_update_elem(&allocations, &key, &made, BPF_ANY)))
		lose_allocation(slot, DROP_ALLOCATIONS_FULL); /* its free will count as a foreign free */
	else
		add_live(site, slot, call->size_bytes);
	if (is_block_kind(memory_kind(of->op)))
		add_host_block(slot, call->handle, call->size_bytes);
}

INLINE void end_allocation(struct open_call *call, struct site_identity *of, u32 slot, s32 ret)
{
	struct allocation_site *site;
	u32 index;

	if (!ret && !call->handle) { /* nothing was requested, or the pointer could not be read */
		if (call->size_bytes)
			lose_allocation(slot, DROP_ALLOCATIONS_UNPAIRED);
		return;
	}
	index = site_index(of);
	if (unlikely(index == NO_SITE)) {
		lose_allocation(slot, DROP_ALLOCATIONS_FULL);
	} else if (likely(!ret)) {
		begin_live(call, slot, of, index);
	} else {
		site = bpf_map_lookup_elem(&allocation_sites, &index);
		if (!site)
			return;
		__sync_fetch_and_add(&site->failures, 1);
		__sync_fetch_and_add(&site->failed_bytes, summed_bytes(call->size_bytes));
	}
}

/* The last reference to physical memory frees it. Returns whether it was the last; then it has been removed. */
INLINE bool let_go(const struct allocation_key *key, struct allocation *found, struct allocation *to)
{
	return __sync_fetch_and_add(&found->holds, -1) == 1 && take_out(key, found, to);
}

/* Removes what a free releases from the table. */
GLOBAL int take_freed(struct open_call *call, u32 slot)
{
	struct allocation_key key;
	struct allocation *found;
	u32 op;

	if (!call)
		return 0;
	op = COOKIE_OP(call->cookie);
	slot &= MAX_PROCESSES - 1;
	call->freed.what = FREES_NOTHING;
	if (!memory_kind(op) || !call->handle)
		return 0;
	key = allocation_key(slot, space_of(op), call->handle);
	found = bpf_map_lookup_elem(&allocations, &key);
	call->freed.what = FREES_FOREIGN;
	if (!found)
		return 0;
	if (memory_kind(op) == MEMORY_MAPPED)
		call->freed.what = let_go(&key, found, &call->freed.allocation) ? FREES_LIVE : FREES_HANDLE;
	else if (take_out(&key, found, &call->freed.allocation))
		call->freed.what = FREES_LIVE;
	return 0;
}

/* The entry of a free. Two functions one after the other: nested, they would take too much stack before 6.13. */
INLINE void begin_free(struct open_call *call, u32 slot)
{
	u32 kind = memory_kind(COOKIE_OP(call->cookie));

	if (kind == MEMORY_PINNED || kind == MEMORY_DEVICE) /* cudaFree frees managed memory too */
		drop_host_block(slot, call->handle);
	take_freed(call, slot);
}

INLINE void end_free(struct open_call *call, struct site_identity *of, u32 slot)
{
	struct allocation_site *site;
	u32 index;

	if (likely(call->freed.what == FREES_LIVE)) {
		end_live(&call->freed.allocation, slot);
		return;
	}
	if (call->freed.what != FREES_FOREIGN)
		return;
	index = site_index(of);
	site = index == NO_SITE ? NULL : bpf_map_lookup_elem(&allocation_sites, &index);
	if (site)
		__sync_fetch_and_add(&site->foreign_frees, 1);
}

/* A free that failed has freed nothing. */
INLINE void undo_free(struct open_call *call, u32 slot)
{
	struct allocation_key key = allocation_key(slot, space_of(COOKIE_OP(call->cookie)), call->handle);
	struct allocation *found, back = call->freed.allocation;

	if (call->freed.what == FREES_LIVE) {
		back.holds = 1;
		if (bpf_map_update_elem(&allocations, &key, &back, BPF_ANY))
			lose_allocation(slot, DROP_ALLOCATIONS_FULL);
	} else if (call->freed.what == FREES_HANDLE) {
		found = bpf_map_lookup_elem(&allocations, &key);
		if (found)
			__sync_fetch_and_add(&found->holds, 1);
	}
}

/* Physical memory stays as long as it is mapped, even if its handle is released. */
INLINE void map_memory(struct open_call *call, u32 slot)
{
	struct allocation_key key = allocation_key(slot, SPACE_HANDLES, call->extra);
	struct allocation *physical = bpf_map_lookup_elem(&allocations, &key);
	struct allocation mapping = { .bytes = call->size_bytes, .handle = call->extra, .holds = 1 };

	if (!physical) /* imported, or allocated before tracing */
		return;
	mapping.since_ns = physical->since_ns;
	__sync_fetch_and_add(&physical->holds, 1);
	key = allocation_key(slot, SPACE_MAPPINGS, call->handle);
	if (bpf_map_update_elem(&allocations, &key, &mapping, BPF_ANY)) {
		__sync_fetch_and_add(&physical->holds, -1);
		lose_allocation(slot, DROP_ALLOCATIONS_FULL);
	}
}

INLINE void end_mapping(const struct allocation *mapping, u32 slot)
{
	struct allocation_key key = allocation_key(slot, SPACE_HANDLES, mapping->handle);
	struct allocation *physical = bpf_map_lookup_elem(&allocations, &key), gone;

	if (physical && physical->since_ns == mapping->since_ns && let_go(&key, physical, &gone))
		end_live(&gone, slot);
}

/* The bytes of the mapping that begins at an address, which has ended; 0: none is known. */
GLOBAL u64 unmap_at(u32 slot, u64 address)
{
	struct allocation_key key = allocation_key(slot, SPACE_MAPPINGS, address);
	struct allocation *found = bpf_map_lookup_elem(&allocations, &key), mapping;

	if (!found || !take_out(&key, found, &mapping))
		return 0;
	if (mapping.bytes)
		end_mapping(&mapping, slot & (MAX_PROCESSES - 1));
	return mapping.bytes;
}

INLINE void unmap_memory(struct open_call *call, u32 slot)
{
	u64 address = call->handle, end = address + call->size_bytes;

	for (int i = 0; i < UNMAPPED_AT_ONCE && address < end; i++) {
		u64 bytes = unmap_at(slot, address);

		if (!bytes)
			return; /* of memory that was imported, or allocated before tracing */
		address += bytes;
	}
	if (address < end)
		lose_allocation(slot, DROP_ALLOCATIONS_UNPAIRED);
}

/* The return of a call of KIND_MEMORY. The stacks are 0 unless it is recorded. */
GLOBAL int end_memory(struct open_call *call, u32 slot, s32 ret, u64 python_stack, u64 native_stack)
{
	struct site_identity of = {};
	u32 kind;

	if (!call)
		return 0;
	kind = COOKIE_KIND(call->cookie);
	slot &= MAX_PROCESSES - 1;
	of.caller = call->caller;
	of.slot = slot;
	of.execs = execs_of(slot);
	of.op = COOKIE_OP(call->cookie);
	if (kind & KIND_ALLOC) {
		of.python_stack = python_stack;
		of.native_stack = native_stack;
		if (memory_kind(of.op))
			end_allocation(call, &of, slot, ret);
	} else if (kind & KIND_FREE) {
		if (likely(!ret))
			end_free(call, &of, slot);
		else
			undo_free(call, slot);
	} else if (!ret && kind & KIND_MAP) {
		map_memory(call, slot);
	} else if (!ret) {
		unmap_memory(call, slot);
	}
	return 0;
}

/* The bytes of a pitched allocation, whose rows are longer than requested. */
INLINE void take_pitch(struct open_call *call, s32 ret)
{
	call->extra = ret ? 0 : read_user_word(call->extra);
	if (call->extra)
		call->size_bytes = call->extra * call->function;
	call->function = 0;
}

/* Destroying a context frees all memory allocated in it; which memory that is, is not known. */
GLOBAL int lose_context(u32 slot)
{
	u64 live = 0;

	slot &= MAX_PROCESSES - 1;
	for (u32 kind = 0; kind < MEMORY_KINDS; kind++) {
		struct memory_total *total = memory_total(slot, kind);

		live += total ? total->live_count : 0;
	}
	if (live)
		lose_allocation(slot, DROP_ALLOCATIONS_UNPAIRED);
	return 0;
}

/* A new program has nothing of what the previous one had; its sites are different because its `execs` is. */
INLINE void forget_memory(u32 slot, struct process *process)
{
	process->unpaired = 0;
	for (u32 kind = 0; kind < MEMORY_KINDS; kind++) {
		struct memory_total *total = memory_total(slot, kind);

		if (total)
			__builtin_memset(total, 0, sizeof(*total));
	}
}

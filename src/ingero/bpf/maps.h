/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Maps that several objects use. The loader gives every object the first object's map of the same name.
 *
 * Sizes marked (agent) are the smallest; the agent sets them before loading.
 */
#pragma once
#include "kernel.h"

/* process id -> slot; twice the slots, so that a full table still has short chains */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(max_entries, 2 * MAX_PROCESSES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u32);
} targets MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, MAX_PROCESSES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct process);
} processes MAP;

/* where the interpreter of a process keeps its frames; a child inherits its parent's */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, MAX_PROCESSES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct python_layout);
} python_layouts MAP;

/* by process slot; the image is the agent's to write, the count code_freed()'s */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, MAX_PROCESSES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct freed_code);
} freed_codes MAP;

/* unused slots; filled by the agent, taken at fork */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_STACK);
	MAP_UINT(max_entries, MAX_PROCESSES);
	MAP_UINT(value_size, sizeof(u32));
} free_slots MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, DROP_COUNT);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} drops MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} lifecycle MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} host MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} offcpu MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} samples MAP;

/* The program that a traced process runs: no later one, in its process or its slot, has the same number. */
INLINE u64 image_of(const struct process *process)
{
	return process->start_boottime_ns + process->execs;
}

INLINE void count_drop(u32 which, u64 amount)
{
	u64 *counter = bpf_map_lookup_elem(&drops, &which);

	if (counter)
		__sync_fetch_and_add(counter, amount);
}

/* One forced wake-up each time a ring passes a sixteenth of its size; a wake-up per record would cost 300 ns each. */
INLINE u64 ring_wakeup(void *ring, u64 ring_bytes, u64 record_bytes)
{
	u64 filled = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA);
	u64 mark = ring_bytes / 16;

	return filled < mark && filled + record_bytes + 8 >= mark ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

/* Slot of a traced process, or NO_SLOT. */
#define NO_SLOT 0xffffffffu
INLINE u32 slot_of(u32 pid)
{
	u32 *slot = bpf_map_lookup_elem(&targets, &pid);

	return slot ? *slot & (MAX_PROCESSES - 1) : NO_SLOT;
}

/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * The NCCL communicators of traced processes, by process and handle; what becomes known of one goes into ring `nccl`.
 */
#pragma once
#include "maps.h"

#define COMMUNICATOR_NUMBER_BITS 24
#define COMMUNICATOR_SEQUENCE_BITS 40

struct communicator_key {
	u64 handle;
	u64 slot;
};

/* 256 processes with 16 each: torch makes one per process group and device */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, struct communicator_key);
	MAP_TYPE(value, struct communicator);
} communicators MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u32);
} last_communicator MAP;

/* at most a few hundred bytes per communicator ever made */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 18);
} nccl MAP;

INLINE u32 new_communicator_number(void)
{
	u32 zero = 0, *last = bpf_map_lookup_elem(&last_communicator, &zero);

	return last ? (__sync_fetch_and_add(last, 1) + 1) & ((1 << COMMUNICATOR_NUMBER_BITS) - 1) : 0;
}

/* Starts a record that was reserved and may be NULL. */
INLINE struct communicator_record *begin_communicator(struct communicator_record *record, u8 kind, u32 slot, u64 handle)
{
	u64 id = bpf_get_current_pid_tgid();

	if (!record) {
		count_drop(DROP_COMMUNICATOR_RING_FULL, 1);
		return NULL;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->time_ns = bpf_ktime_get_ns();
	record->handle = handle;
	record->pid = id >> 32;
	record->tid = id;
	record->rank = record->nranks = -1;
	record->process_slot = slot;
	record->kind = kind;
	return record;
}

INLINE struct communicator_record *reserve_communicator(u8 kind, u32 slot, u64 handle)
{
	struct communicator_record *record = bpf_ringbuf_reserve(&nccl, sizeof(*record), 0);

	return begin_communicator(record, kind, slot, handle);
}

INLINE u64 process_start_of(u32 slot)
{
	struct process *process = bpf_map_lookup_elem(&processes, &slot);

	return process ? process->start_boottime_ns : 0;
}

/* The communicator behind a handle, or NULL. An entry that an ended process left in the slot does not count. */
INLINE struct communicator *known_communicator(u32 slot, u64 handle)
{
	struct communicator_key key = {.handle = handle, .slot = slot};
	struct communicator *found = bpf_map_lookup_elem(&communicators, &key);

	return found && found->process_start_ns == process_start_of(slot) ? found : NULL;
}

/* Stores a communicator, complete except for number and process, under a handle. Returns its number; 0: no room. */
INLINE u32 put_communicator(u32 slot, u64 handle, struct communicator *fresh)
{
	struct communicator_key key = {.handle = handle, .slot = slot};

	fresh->process_start_ns = process_start_of(slot);
	fresh->number = new_communicator_number();
	if (!bpf_map_update_elem(&communicators, &key, fresh, BPF_ANY))
		return fresh->number;
	count_drop(DROP_COMMUNICATORS_FULL, 1);
	return 0;
}

/* Like known_communicator; one created before tracing began is entered with nothing known except its handle. */
INLINE struct communicator *communicator_of(u32 slot, u64 handle)
{
	struct communicator fresh = {.rank = -1, .nranks = -1};
	struct communicator *found = known_communicator(slot, handle);
	struct communicator_record *record;
	u32 number;

	if (found || !handle)
		return found;
	number = put_communicator(slot, handle, &fresh);
	if (!number)
		return NULL;
	record = reserve_communicator(COMMUNICATOR_FOUND, slot, handle);
	if (record) {
		record->number = number;
		bpf_ringbuf_submit(record, 0);
	}
	return known_communicator(slot, handle);
}

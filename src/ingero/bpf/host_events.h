/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* What the host event programs share: exact totals per kind, and records of the rings `host` and `lifecycle`. */
#pragma once
#include "cgroup.h"
#include "maps.h"

#define NO_TARGET 0xffff /* process_slot of a record */
#define SIGNAL_KILL 9

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, HOST_KINDS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct host_total);
} host_totals MAP;

INLINE void count_host(u32 kind, bool is_traced, u64 count, u64 size_bytes, u64 ns)
{
	struct host_total *total = bpf_map_lookup_elem(&host_totals, &kind);

	if (!total)
		return;
	if (is_traced) {
		__sync_fetch_and_add(&total->traced_count, count);
		__sync_fetch_and_add(&total->traced_bytes, size_bytes);
		__sync_fetch_and_add(&total->traced_ns, ns);
	} else {
		__sync_fetch_and_add(&total->other_count, count);
		__sync_fetch_and_add(&total->other_bytes, size_bytes);
		__sync_fetch_and_add(&total->other_ns, ns);
	}
}

/* A zeroed record of ring `host`, or NULL (counted). */
INLINE struct host_record *reserve_host(u8 kind)
{
	struct host_record *record = bpf_ringbuf_reserve(&host, sizeof(*record), 0);

	if (!record) {
		count_drop(DROP_HOST_EVENTS_RING_FULL, 1);
		return NULL;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->kind = kind;
	record->process_slot = NO_TARGET;
	return record;
}

INLINE void submit_host(struct host_record *record)
{
	bpf_ringbuf_submit(record, ring_wakeup(&host, bpf_ringbuf_query(&host, BPF_RB_RING_SIZE), sizeof(*record)));
}

/* Fills in the calling thread. */
INLINE void set_current(struct host_record *record, u32 slot)
{
	u64 id = bpf_get_current_pid_tgid();

	record->pid = id >> 32;
	record->tid = (u32)id;
	record->process_slot = slot == NO_SLOT ? NO_TARGET : slot;
	record->cgroup_id = cgroup_id_copied(bpf_get_current_task_btf());
	bpf_get_current_comm(record->comm, COMM_BYTES);
}

/* A zeroed record of ring `lifecycle`, or NULL (counted). */
INLINE struct lifecycle_record *reserve_lifecycle(u8 kind)
{
	struct lifecycle_record *record = bpf_ringbuf_reserve(&lifecycle, sizeof(*record), 0);

	if (!record) {
		count_drop(DROP_LIFECYCLE_RING_FULL, 1);
		return NULL;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->time_ns = bpf_ktime_get_ns();
	record->kind = kind;
	record->process_slot = NO_TARGET;
	return record;
}

/* Lifecycle records are rare and change what is traced: the agent is woken for each. */
INLINE void submit_lifecycle(struct lifecycle_record *record)
{
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
}

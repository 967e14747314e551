// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Memory pressure: how long a thread was held up by reclaim or compaction, pages that traced processes allocate, OOM
 * kills.
 *
 * The tracepoints of reclaim and compaction differ between kernels in arguments that are not read here.
 */
#include "host_events.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Reclaim and compaction in other processes are recorded from this duration on. */
const volatile u64 memory_slow_ns = 10 * 1000 * 1000;
const volatile u64 page_bytes = 4096;

struct held_up {
	u64 start_ns;
	u32 order;
	u32 pad;
};

/*
 * By kind << 32 | thread: neither reclaim nor compaction nests in itself. As many entries as threads can be inside at a
 * time; one that finds no room is counted at its end.
 */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, struct held_up);
} memory_held_up MAP;

/*
 * What each thread reclaimed for last (enum memory_limit): an OOM kill follows attempts to reclaim, of the host's
 * memory or below a cgroup's limit, by the thread that kills. As many entries as threads that reclaim at a time; the
 * oldest are evicted.
 */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u8);
} memory_reclaimed_for MAP;

INLINE void note_reclaim(u8 limit)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();

	bpf_map_update_elem(&memory_reclaimed_for, &tid, &limit, BPF_ANY);
}

INLINE u64 held_up_key(u32 kind)
{
	return (u64)kind << 32 | (u32)bpf_get_current_pid_tgid();
}

INLINE int begin(u32 kind, u32 order)
{
	struct held_up held_up = { .start_ns = bpf_ktime_get_ns(), .order = order };
	u64 key = held_up_key(kind);

	bpf_map_update_elem(&memory_held_up, &key, &held_up, BPF_ANY);
	return 0;
}

INLINE int end(u32 kind, u8 flags, u64 size_bytes)
{
	u64 key = held_up_key(kind);
	struct held_up *held_up = bpf_map_lookup_elem(&memory_held_up, &key);
	struct host_record *record;
	struct held_up begun;
	u64 duration_ns;
	u32 slot;

	if (!held_up) {
		count_drop(DROP_HOST_START_UNMATCHED, 1);
		return 0;
	}
	begun = *held_up;
	bpf_map_delete_elem(&memory_held_up, &key);
	duration_ns = bpf_ktime_get_ns() - begun.start_ns;
	slot = slot_of(bpf_get_current_pid_tgid() >> 32);
	count_host(kind, slot != NO_SLOT, 1, size_bytes, duration_ns);
	if (slot == NO_SLOT && duration_ns < memory_slow_ns)
		return 0;
	record = reserve_host(kind);
	if (!record)
		return 0;
	record->start_ns = begun.start_ns;
	record->duration_ns = duration_ns;
	record->size_bytes = size_bytes;
	record->arg0 = begun.order;
	record->flags = flags;
	set_current(record, slot);
	submit_host(record);
	return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int direct_reclaim_begin(u64 *ctx)
{
	return begin(HOST_DIRECT_RECLAIM, ctx[0]);
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int direct_reclaim_end(u64 *ctx)
{
	note_reclaim(LIMIT_HOST);
	return end(HOST_DIRECT_RECLAIM, 0, ctx[0] * page_bytes);
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int memcg_reclaim_begin(u64 *ctx)
{
	return begin(HOST_DIRECT_RECLAIM, ctx[0]);
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int memcg_reclaim_end(u64 *ctx)
{
	note_reclaim(LIMIT_CGROUP);
	return end(HOST_DIRECT_RECLAIM, HOST_MEMCG_LIMIT, ctx[0] * page_bytes);
}

SEC("tp_btf/mm_compaction_begin")
int compaction_begin(__attribute__((unused)) u64 *ctx)
{
	return begin(HOST_COMPACTION, 0);
}

SEC("tp_btf/mm_compaction_end")
int compaction_end(__attribute__((unused)) u64 *ctx)
{
	return end(HOST_COMPACTION, 0, 0);
}

/*
 * The most frequent event here: an untraced process leaves after one lookup (+0.08 us on the 1.4 us that a new page
 * takes, +0.11 for a traced one; bench/host_events_cost.py). Pages taken by an interrupt during a traced process's time
 * are counted as that process's.
 */
SEC("tp_btf/mm_page_alloc")
int page_alloc(u64 *ctx)
{
	u32 slot = slot_of(bpf_get_current_pid_tgid() >> 32);
	struct process *process;

	if (likely(slot == NO_SLOT) || !ctx[0]) /* no page: the allocation failed */
		return 0;
	process = bpf_map_lookup_elem(&processes, &slot);
	if (!process)
		return 0;
	__sync_fetch_and_add(&process->page_allocs, 1);
	__sync_fetch_and_add(&process->page_alloc_bytes, page_bytes << (ctx[1] & 31));
	return 0;
}

/* Which form the event has: the task and its sizes (newer kernels and some older series), or only the pid. */
struct trace_event_raw_mark_victim {
	unsigned long total_vm;
} RELOCATED;

/* Resident memory of a process: file, anonymous, and shared pages; [2] counts what is swapped out. */
struct percpu_counter {
	s64 count;
} RELOCATED;

struct mm_struct___counters { /* 6.2 */
	struct percpu_counter rss_stat[4];
} RELOCATED;

struct mm_rss_stat {
	struct { s64 counter; } count[4];
} RELOCATED;

struct mm_struct___sums {
	struct mm_rss_stat rss_stat;
} RELOCATED;

INLINE u64 resident_bytes(struct mm_struct *mm)
{
	struct mm_struct___counters *counters = (void *)mm;
	struct mm_struct___sums *sums = (void *)mm;
	s64 file = 0, anonymous = 0, shared = 0;

	if (field_exists(counters->rss_stat[0].count)) {
		bpf_probe_read_kernel(&file, sizeof(file), &counters->rss_stat[0].count);
		bpf_probe_read_kernel(&anonymous, sizeof(anonymous), &counters->rss_stat[1].count);
		bpf_probe_read_kernel(&shared, sizeof(shared), &counters->rss_stat[3].count);
	} else if (field_exists(sums->rss_stat.count)) {
		bpf_probe_read_kernel(&file, sizeof(file), &sums->rss_stat.count[0]);
		bpf_probe_read_kernel(&anonymous, sizeof(anonymous), &sums->rss_stat.count[1]);
		bpf_probe_read_kernel(&shared, sizeof(shared), &sums->rss_stat.count[3]);
	}
	/* the kernel sums up late: a count may be below zero for a while */
	return ((file > 0 ? file : 0) + (anonymous > 0 ? anonymous : 0) + (shared > 0 ? shared : 0)) * page_bytes;
}

SEC("tp_btf/mark_victim")
int mark_victim(u64 *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	struct lifecycle_record *record = reserve_lifecycle(LIFECYCLE_OOM_KILL);
	u32 slot, tid = (u32)id;
	u8 *limit;

	if (!record)
		return 0;
	record->pid = id >> 32;
	record->tid = tid;
	record->code = SIGNAL_KILL;
	limit = bpf_map_lookup_elem(&memory_reclaimed_for, &tid);
	record->short_of = limit ? *limit : LIMIT_UNKNOWN;
	if (field_exists(((struct trace_event_raw_mark_victim *)0)->total_vm)) {
		struct task_struct *affected = (struct task_struct *)ctx[0];

		record->other_pid = affected->tgid;
		record->cgroup_id = cgroup_id_copied(affected);
		record->start_boottime_ns = process_start_of_task(affected);
		record->size_bytes = resident_bytes(copied(affected->mm));
		read_comm(record->comm, affected->comm);
	} else {
		record->other_pid = (u32)ctx[0];
	}
	slot = slot_of(record->other_pid);
	record->process_slot = slot == NO_SLOT ? NO_TARGET : slot;
	submit_lifecycle(record);
	return 0;
}

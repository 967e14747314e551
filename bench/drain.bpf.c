// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Fills a ring with off-CPU records as fast as it is asked to; run by BPF_PROG_TEST_RUN, attached to nothing. */
#include "maps.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define THREADS 64
#define OFF_CPU_STATES 4 /* sleep, io, kernel lock, stopped */

const volatile u64 records_bytes = 1 << 20;
const volatile u32 burst = 1000;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (bench) */
} records MAP;

struct produced {
	u64 written;
	u64 lost;
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct produced);
} totals MAP;

static long produce_one(u32 index, void *context)
{
	struct offcpu_record *record;
	struct produced *total;
	u32 zero = 0, random = bpf_get_prandom_u32();

	total = bpf_map_lookup_elem(&totals, &zero);
	if (!total)
		return 1;
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record) {
		total->lost++;
		return 0;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->end_ns = bpf_ktime_get_ns();
	record->start_ns = record->end_ns - (random >> (random & 15));
	record->woken_ns = record->end_ns - 1000;
	record->pid = 1;
	record->tid = 1 + index % THREADS;
	record->process_slot = 0;
	record->cpu = bpf_get_smp_processor_id();
	record->state = STATE_SLEEP + random % OFF_CPU_STATES;
	record->waker_kind = WAKER_THREAD;
	record->waker_tid = 1 + random % THREADS;
	record->comm[0] = 'a' + index % 16;
	total->written++;
	bpf_ringbuf_submit(record, ring_wakeup(&records, records_bytes, sizeof(*record)));
	return 0;
}

SEC("tc")
int produce(void *context)
{
	bpf_loop(burst, produce_one, NULL, 0);
	return 0;
}

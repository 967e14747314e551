/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * What is kept per CPU: which threads wait for it, which ran on it lately, which interrupt it serves.
 *
 * An array indexed by CPU rather than a per-CPU map, because a wake-up on one CPU adds a waiter to another.
 */
#pragma once
#include "clocks.h"

#define WAIT_SLOTS (2 * MAX_PROCESSES) /* upper half: waits after sched_yield */
#define WAIT_WORDS (WAIT_SLOTS / 64)
#define SLICES 16 /* a wait behind four hogs with slices of 4 ms stays visible for 64 ms */

/*
 * Waiters of one process on one CPU. `joined` = (sum of join times - sum of leave times) << 16 | number of waiters, so
 * the time they have waited until t is number * t - sum, and joining or leaving is one atomic add from any CPU. 48 bits
 * of nanoseconds wrap after 78 h; all differences are taken modulo that.
 */
struct waiters {
	u64 joined;
	u64 charged_ns; /* waited time already attributed to culprits */
};

/* A time range in which one thread ran while others waited. */
struct slice {
	u64 start_ns;
	u64 end_ns;
	u32 pid;
	u32 tid;
	char comm[COMM_BYTES];
};

/* Where a program is in its loop over slots or slices: kept in memory, because the verifier would follow locals. */
struct scan {
	u64 words; /* of the bitmap, still to be read */
	u64 slots; /* of the current word, still to be attributed */
	u64 word;  /* where the last flush ran out of budget */
	u64 longest_ns;
	u64 longest_slice;
};

struct cpu {
	u64 active_words; /* one bit per word of `active`; 0 = no thread waits here */
	u64 switched_ns;  /* the last context switch that was processed */
	u32 slice_head;
	u8 softirq; /* vector + 1 being served */
	u8 hardirq; /* enum waker_kind of the interrupt handler that runs */
	u8 is_own_softirq; /* served by the task itself as it re-enables softirqs, not on the way out of an interrupt */
	u8 pad;
	struct scan scan;
	u64 active[WAIT_WORDS];
	struct waiters waiters[WAIT_SLOTS];
	struct slice slices[SLICES];
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1); /* (agent) number of possible CPUs */
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct cpu);
} cpus MAP;

INLINE struct cpu *cpu_at(u32 index)
{
	return bpf_map_lookup_elem(&cpus, &index);
}

INLINE struct cpu *this_cpu(void)
{
	return cpu_at(bpf_get_smp_processor_id());
}

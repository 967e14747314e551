/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Which thread ran longest during one wait: the last slices of each CPU for which a thread waits. */
#pragma once
#include "cpus.h"

#define WAIT_WORTH_A_SEARCH_NS 100000 /* as long as the shortest off-CPU interval that is kept */
#define SLICE_MIN_NS 5000 /* 16 shorter ones fill less than such a wait, and would push the long ones out */

/*
 * Remembers what ran until now. The start may be too early, namely the last switch that was processed, because switches
 * without waiters are skipped; all waits of this CPU began after the skipped one.
 */
INLINE void add_slice(struct cpu *cpu, struct task_struct *task, u64 now)
{
	u64 index;

	if (now - cpu->switched_ns < SLICE_MIN_NS)
		return;
	index = cpu->slice_head++;
	asm volatile("%0 &= 15" : "+r"(index)); /* SLICES - 1 */
	cpu->slices[index].start_ns = cpu->switched_ns;
	cpu->slices[index].end_ns = now;
	cpu->slices[index].pid = task->tgid;
	cpu->slices[index].tid = task->pid;
	read_comm(cpu->slices[index].comm, task->comm);
}

/* Stores the slice that took most of [from, to] in `scan`; longest_ns = 0: none. */
GLOBAL int find_longest_slice(u64 from, u64 to)
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return 0;
	cpu->scan.longest_ns = 0;
	for (u32 i = 0; i < SLICES; i++) {
		u64 start = cpu->slices[i].start_ns, end = cpu->slices[i].end_ns;

		start = start > from ? start : from;
		end = end < to ? end : to;
		if (end > start && end - start > cpu->scan.longest_ns) {
			cpu->scan.longest_ns = end - start;
			cpu->scan.longest_slice = i;
		}
	}
	return 0;
}

/* The thread's open calls keep the culprit that ran longest during one of their waits. */
INLINE void raise_culprit(struct thread *thread, struct slice *slice, u64 ns)
{
	for (int i = 0; i < OPEN_CALLS; i++) {
		struct open_call *call = &thread->calls[i];

		if (!call->sp || call->worst_culprit_ns >= ns)
			continue;
		call->worst_culprit_ns = ns;
		call->worst_culprit_pid = slice->pid;
		call->worst_culprit_tid = slice->tid;
	}
}

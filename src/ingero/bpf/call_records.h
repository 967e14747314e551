/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A call that has returned: its part of the exact sums, and whether it gets a record of its own. */
#pragma once
#include "cells.h"
#include "cgroup.h"
#include "clocks.h"
#include "histogram.h"
#include "ops_gen.h"

#define NEW_CELL_RECORDS 100 /* until the agent sets the number; more would flood the ring in the first second */

const volatile u32 record_all = 0;
const volatile u32 sampling_rate = 0; /* one in this many ordinary calls is recorded; 0: as the cell says */
const volatile u64 calls_ring_bytes = 1 << 20;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} calls MAP;

/* What the thread did besides running, and what no state explains. Before `sum_ns`, of which running is the rest. */
INLINE void add_clocks(struct cell *cell, struct open_call *call, const struct snapshot *at)
{
	u64 residual = at->now_ns - call->start_ns;

	for (int i = 0; i < STATES; i++) {
		u64 spent = at->clocks.ns[i] - call->clocks.ns[i];

		residual -= spent;
		if (spent && i != CLOCK(STATE_RUN))
			__sync_fetch_and_add(&cell->state_ns[i], spent);
	}
	if (residual)
		__sync_fetch_and_add(&cell->residual_ns, residual);
}

INLINE void add_to_cell(struct cell *cell, struct open_call *call, u64 duration, s32 ret)
{
	__sync_fetch_and_add(&cell->sum_ns, duration);
	if (unlikely(duration > READ_ONCE(cell->max_ns)))
		raise_to(&cell->max_ns, duration);
	if (unlikely(call->size_bytes))
		__sync_fetch_and_add(&cell->size_bytes, summed_bytes(call->size_bytes));
	if (unlikely(ret))
		__sync_fetch_and_add(&cell->errors, 1);
	__sync_fetch_and_add(&cell->histogram[bucket_of(duration) & (HISTOGRAM_BUCKETS - 1)], 1);
}

/* Why this call gets a record of its own; 0: it does not. */
INLINE u32 reason_to_record(struct cell *cell, const struct open_call *call, u64 nth, u64 duration, s32 ret)
{
	u64 threshold = READ_ONCE(cell->threshold_ns), sample = sampling_rate;

	if (unlikely(ret) && COOKIE_KIND(call->cookie) & KIND_ALLOC)
		return CALL_FAILED;
	if (!sample)
		sample = READ_ONCE(cell->sample);
	if (nth < NEW_CELL_RECORDS || nth < READ_ONCE(cell->rare_until))
		return CALL_RARE;
	if (threshold && duration >= threshold)
		return CALL_SLOW;
	if (record_all || (sample && nth % sample == 0))
		return CALL_SAMPLED;
	return 0;
}

GLOBAL int write_record(struct thread *thread, struct open_call *call, struct snapshot *at, s32 ret, u32 flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct call_record *record;
	u64 sum = 0;

	if (!thread || !call || !at)
		return 0;
	record = bpf_ringbuf_reserve(&calls, sizeof(*record), 0);
	if (!record) {
		count_drop(DROP_CALL_RECORDS_RING_FULL, 1);
		return 0;
	}
	record->start_ns = call->start_ns;
	record->duration_ns = at->now_ns - call->start_ns;
	for (int i = 0; i < STATES; i++) {
		u64 spent = at->clocks.ns[i] - call->clocks.ns[i];

		record->state_ns[i] = spent;
		sum += spent;
	}
	record->residual_ns = record->duration_ns - sum;
	record->caller = call->caller;
	record->function = call->function;
	record->size_bytes = call->size_bytes;
	record->handle = call->handle;
	record->extra = call->extra;
	record->stream = call->stream;
	record->cgroup_id = cgroup_id_of(task);
	record->python_stack = thread->python_stack;
	record->native_stack = thread->native_stack;
	record->culprit_ns = call->worst_culprit_ns;
	record->culprit_pid = call->worst_culprit_ns ? call->worst_culprit_pid : 0;
	record->culprit_tid = call->worst_culprit_ns ? call->worst_culprit_tid : 0;
	record->pid = task->tgid;
	record->tid = task->pid;
	record->waker_ns = 0;
	record->waker_tid = 0;
	record->waker_kind = WAKER_NONE;
	if (thread->last_wake_ns > call->start_ns) {
		record->waker_ns = thread->last_wake_ns;
		record->waker_tid = thread->woken_tid;
		record->waker_kind = thread->woken_kind;
	}
	if (thread->last_off_ns > call->start_ns)
		flags |= CALL_WAITED;
	if (is_flawed(call->flaws, at->flaws) || record->residual_ns)
		flags |= CALL_INCOMPLETE;
	record->ret = ret;
	record->device = thread->device;
	record->switches = at->switches - call->switches;
	record->preemptions = at->preemptions - call->preemptions;
	record->cpu = bpf_get_smp_processor_id();
	record->op = COOKIE_OP(call->cookie);
	record->process_slot = thread->process_slot;
	record->flags = flags;
	record->pad[0] = record->pad[1] = 0;
	bpf_get_current_comm(record->comm, COMM_BYTES);
	bpf_ringbuf_submit(record, ring_wakeup(&calls, calls_ring_bytes, sizeof(*record)));
	return 0;
}

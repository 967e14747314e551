/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Sends where a thread was outside traced calls. */
#pragma once
#include "clocks.h"

const volatile u64 samples_ring_bytes = 1 << 20;

INLINE void send_sample(struct task_struct *task, u32 slot, u64 now, u64 python_stack, u64 native_stack, u8 flags,
			u8 state)
{
	struct sample_record *record = bpf_ringbuf_reserve(&samples, sizeof(*record), 0);

	if (!record) {
		count_drop(DROP_SAMPLES_RING_FULL, 1);
		return;
	}
	record->time_ns = now;
	record->python_stack = python_stack;
	record->native_stack = native_stack;
	record->pid = task->tgid;
	record->tid = task->pid;
	record->cpu = bpf_get_smp_processor_id();
	record->process_slot = slot;
	record->flags = flags;
	record->state = state;
	read_comm(record->comm, task->comm);
	bpf_ringbuf_submit(record, ring_wakeup(&samples, samples_ring_bytes, sizeof(*record)));
}

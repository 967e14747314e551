/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The state of the calling thread, if its process is traced or becomes traced by this call. */
#pragma once
#include "admission.h"
#include "clocks.h"

#define ACCOUNT_WAIT_TRIES 64

/* The calling thread's state, started now if this is the first time the thread is seen. */
INLINE struct thread *own_account(struct task_struct *task, u32 slot)
{
	struct thread *thread = thread_of(task);

	if (likely(thread && thread->created_ns))
		return thread;
	if (!thread)
		thread = bpf_task_storage_get(&threads, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (thread && !start_account(thread, slot, STATE_RUN, STATE_RUN))
		for (int i = 0; i < ACCOUNT_WAIT_TRIES && !READ_ONCE(thread->created_ns); i++)
			barrier();
	if (thread && READ_ONCE(thread->created_ns))
		return thread;
	count_drop(DROP_THREAD_STORAGE_FAILED, 1);
	return NULL;
}

/* The process that the thread's state names, if its slot is still the thread's own and its calls count. */
INLINE struct process *process_of(struct thread *thread, struct task_struct *task)
{
	u32 slot = thread->process_slot;
	struct process *process = bpf_map_lookup_elem(&processes, &slot);

	return process && process->pid == (u32)task->tgid && !process->is_released && thread->created_ns ? process : NULL;
}

/* The state of a thread that calls for the first time, or since its process got another slot; NULL: not traced. */
NOINLINE struct thread *new_caller(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 slot = slot_of(task->tgid);
	struct thread *thread;

	if (slot == NO_SLOT) {
		slot = admit(task);
		if (slot == NO_SLOT)
			return NULL;
		slot &= MAX_PROCESSES - 1;
	}
	thread = own_account(task, slot);
	if (thread)
		thread->process_slot = slot;
	return thread;
}

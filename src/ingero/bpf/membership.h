/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Which threads are tracked: registered when tracing begins, born of a tracked process, removed with it. */
#pragma once
#include "slots.h"
#include "states.h"
#include "wakers.h"

#define START_STEP_NS 10000000 /* the agent knows a start from /proc, in clock ticks of 10 ms */

/* processes whose threads `enroll_threads` is to find: process id -> slot */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(max_entries, MAX_PROCESSES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u32);
} enrolling MAP;

INLINE struct thread *enroll(struct task_struct *task, u32 slot, u8 hint)
{
	struct thread *thread = bpf_task_storage_get(&threads, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!thread)
		count_drop(DROP_THREAD_STORAGE_FAILED, 1);
	else
		start_account(thread, slot, STATE_INIT, hint);
	return thread;
}

/*
 * A thread is born: of its own process, or the first of a forked one. Its first interval off the CPU is a sleep of no
 * length, ended by who made it: nothing that anybody waited for before was its doing.
 */
INLINE void enroll_born(struct task_struct *task, u32 slot, struct task_struct *parent)
{
	struct thread *thread = enroll(task, slot, STATE_SLEEP), *origin = thread_of(parent);

	if (!thread)
		return;
	thread->last_off_ns = thread->created_ns;
	thread->last_off_state = STATE_SLEEP;
	note_waker(thread);
	if (task->tgid == parent->tgid)
		thread->untouched_ns = thread->created_ns;
	else if (origin && origin->created_ns)
		inherit_device(thread, origin);
}

/* Not a later process with the same process id. */
INLINE bool is_owner(struct task_struct *task, u32 slot)
{
	struct process *process = bpf_map_lookup_elem(&processes, &slot);

	return process && process_start_of_task(task) - process->start_boottime_ns < START_STEP_NS;
}

SEC("iter/task") int enroll_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	u32 pid, *slot;

	if (!task || task->exit_state)
		return 0;
	pid = task->tgid;
	slot = bpf_map_lookup_elem(&enrolling, &pid);
	if (slot && is_owner(task, *slot & (MAX_PROCESSES - 1)))
		enroll(task, *slot & (MAX_PROCESSES - 1), state_hint(task));
	return 0;
}

/* Runs before the child's first wake-up. */
SEC("tp_btf/sched_process_fork") int sched_process_fork(u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	struct lifecycle_record *record;
	struct python_layout *layout;
	u32 parent_slot = slot_of(parent->tgid), slot = parent_slot;

	if (slot == NO_SLOT)
		return 0;
	if (child->tgid == parent->tgid) {
		enroll_born(child, slot, parent);
		return 0;
	}
	slot = take_slot(child, slot, BPF_ANY);
	if (slot != NO_SLOT) {
		layout = bpf_map_lookup_elem(&python_layouts, &parent_slot);
		if (layout)
			bpf_map_update_elem(&python_layouts, &slot, layout, BPF_ANY);
		enroll_born(child, slot, parent);
	} else {
		count_drop(DROP_PROCESS_SLOTS_FULL, 1);
	}
	record = reserve_lifecycle(parent, slot, LIFECYCLE_FORK);
	if (record) {
		record->other_pid = child->tgid;
		record->start_boottime_ns = child->start_boottime;
		submit_lifecycle(record);
	}
	return 0;
}

SEC("tp_btf/sched_process_exec") int sched_process_exec(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	u32 slot = slot_of(task->tgid);
	struct lifecycle_record *record;

	if (slot == NO_SLOT)
		return 0;
	record = reserve_lifecycle(task, slot, LIFECYCLE_EXEC);
	if (record)
		submit_lifecycle(record);
	return 0;
}

/* A probe of one process is bound to its first thread: when that ends, frees by the others are no longer counted. */
INLINE void stop_counting_freed(u32 slot)
{
	struct freed_code *freed = bpf_map_lookup_elem(&freed_codes, &slot);

	if (freed)
		freed->image = 0;
}

SEC("tp_btf/sched_process_exit") int sched_process_exit(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct lifecycle_record *record;
	u32 pid = task->tgid, slot = slot_of(pid);

	if (slot != NO_SLOT && task->pid == task->tgid)
		stop_counting_freed(slot);
	/* two threads that end together both see that none is left: the one that deletes the entry reports */
	if (slot == NO_SLOT || copied(copied(task->signal)->live.counter) || bpf_map_delete_elem(&targets, &pid))
		return 0;
	record = reserve_lifecycle(task, slot, LIFECYCLE_EXIT);
	if (record) {
		record->code = task->exit_code;
		submit_lifecycle(record);
	}
	return 0;
}

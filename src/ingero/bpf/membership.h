/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Which threads have an account: enrolled when tracing begins, born of a tracked process, gone with it. */
#pragma once
#include "cgroup.h"
#include "states.h"

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
		count_loss(LOSS_THREAD_STORAGE_FAILED, 1);
	else
		start_account(thread, slot, STATE_INIT, hint);
	return thread;
}

/* A thread is born: of its own process, or the first of a forked one. */
INLINE void enroll_born(struct task_struct *task, u32 slot, struct task_struct *parent)
{
	struct thread *thread = enroll(task, slot, STATE_SLEEP), *origin = thread_of(parent);

	if (!thread)
		return;
	if (task->tgid == parent->tgid)
		thread->untouched_ns = thread->created_ns;
	else if (origin && origin->created_ns)
		inherit_device(thread, origin);
}

SEC("iter/task") int enroll_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	u32 pid, *slot;

	if (!task || task->exit_state)
		return 0;
	pid = task->tgid;
	slot = bpf_map_lookup_elem(&enrolling, &pid);
	if (slot)
		enroll(task, *slot & (MAX_PROCESSES - 1), state_hint(task));
	return 0;
}

/* A free slot for the process that `leader` leads, forked from the one in `parent_slot`; or NO_SLOT. */
INLINE u32 take_slot(struct task_struct *leader, u32 parent_slot)
{
	u32 slot = 0, pid = leader->tgid;
	struct process *process, *parent;

	if (bpf_map_pop_elem(&free_slots, &slot)) {
		count_loss(LOSS_PROCESS_SLOTS_FULL, 1);
		return NO_SLOT;
	}
	slot &= MAX_PROCESSES - 1;
	process = bpf_map_lookup_elem(&processes, &slot);
	if (!process)
		return NO_SLOT;
	__builtin_memset(process, 0, sizeof(*process));
	process->start_boottime_ns = leader->start_boottime;
	process->pid = pid;
	parent = bpf_map_lookup_elem(&processes, &parent_slot);
	if (parent)
		process->unseen_ns = parent->unseen_ns;
	if (!bpf_map_update_elem(&targets, &pid, &slot, BPF_ANY))
		return slot;
	process->pid = 0;
	bpf_map_push_elem(&free_slots, &slot, 0);
	count_loss(LOSS_PROCESS_SLOTS_FULL, 1);
	return NO_SLOT;
}

/* A record about `task` as it is now; submit it with submit_lifecycle(). */
INLINE struct lifecycle_record *reserve_lifecycle(struct task_struct *task, u32 slot, u8 kind)
{
	struct lifecycle_record *record = bpf_ringbuf_reserve(&lifecycle, sizeof(*record), 0);

	if (!record) {
		count_loss(LOSS_LIFECYCLE_RING_FULL, 1);
		return NULL;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->time_ns = bpf_ktime_get_ns();
	record->cgroup_id = cgroup_id_of(task);
	record->start_boottime_ns = task->group_leader->start_boottime;
	record->pid = task->tgid;
	record->tid = task->pid;
	record->process_slot = slot == NO_SLOT ? 0xffff : slot;
	record->kind = kind;
	read_comm(record->comm, task->comm);
	return record;
}

/* These are rare, and the agent acts on them: wake it if it waits. */
INLINE void submit_lifecycle(struct lifecycle_record *record)
{
	bpf_ringbuf_submit(record, 0);
}

/* Runs before the child's first wake-up. */
SEC("tp_btf/sched_process_fork") int sched_process_fork(u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	struct lifecycle_record *record;
	u32 slot = slot_of(parent->tgid);

	if (slot == NO_SLOT)
		return 0;
	if (child->tgid == parent->tgid) {
		enroll_born(child, slot, parent);
		return 0;
	}
	slot = take_slot(child, slot);
	if (slot != NO_SLOT)
		enroll_born(child, slot, parent);
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

SEC("tp_btf/sched_process_exit") int sched_process_exit(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct lifecycle_record *record;
	u32 pid = task->tgid, slot = slot_of(pid);

	/* two threads that end together both see that none is left: who deletes the entry reports */
	if (slot == NO_SLOT || task->signal->live.counter || bpf_map_delete_elem(&targets, &pid))
		return 0;
	record = reserve_lifecycle(task, slot, LIFECYCLE_EXIT);
	if (record) {
		record->code = task->exit_code;
		submit_lifecycle(record);
	}
	return 0;
}

/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The slots of traced processes: taken in the kernel at a fork or a first call, and how the agent learns of it. */
#pragma once
#include "cgroup.h"
#include "maps.h"

INLINE void give_slot_back(u32 slot, struct process *process)
{
	process->pid = 0;
	bpf_map_push_elem(&free_slots, &slot, 0);
}

/*
 * A free slot for the process that `leader` leads, forked from the one in `parent_slot`; or NO_SLOT. `flags`: BPF_ANY
 * for a process that is not known anywhere else yet; BPF_NOEXIST where two may race: the loser returns its slot and
 * gets the winner's.
 */
INLINE u32 take_slot(struct task_struct *leader, u32 parent_slot, u64 flags)
{
	u32 slot = 0, pid = leader->tgid;
	struct process *process, *parent;

	if (bpf_map_pop_elem(&free_slots, &slot))
		return NO_SLOT;
	slot &= MAX_PROCESSES - 1;
	process = bpf_map_lookup_elem(&processes, &slot);
	if (!process)
		return NO_SLOT;
	__builtin_memset(process, 0, sizeof(*process));
	process->start_boottime_ns = leader->start_boottime;
	process->pid = pid;
	if (flags == BPF_ANY) /* at its fork, not at a later call */
		process->program_ns = bpf_ktime_get_ns();
	parent = bpf_map_lookup_elem(&processes, &parent_slot);
	if (parent)
		process->unseen_ns = parent->unseen_ns;
	if (!bpf_map_update_elem(&targets, &pid, &slot, flags))
		return slot;
	give_slot_back(slot, process);
	return flags == BPF_NOEXIST ? slot_of(pid) : NO_SLOT;
}

/* A record about `task` as it is now; submit it with submit_lifecycle(). */
INLINE struct lifecycle_record *reserve_lifecycle(struct task_struct *task, u32 slot, u8 kind)
{
	struct lifecycle_record *record = bpf_ringbuf_reserve(&lifecycle, sizeof(*record), 0);

	if (!record) {
		count_drop(DROP_LIFECYCLE_RING_FULL, 1);
		return NULL;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->time_ns = bpf_ktime_get_ns();
	record->cgroup_id = cgroup_id_copied(task);
	record->start_boottime_ns = process_start_of_task(task);
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

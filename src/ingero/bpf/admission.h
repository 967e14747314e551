/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Starts tracing a process at its first traced call, so that this very call counts. The agent sets which processes it
 * wants.
 */
#pragma once
#include "slots.h"

/* written by the agent; before that, no process is admitted */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct admission);
} admission MAP;

/* processes already reported as beyond the limit: process id -> start; the oldest are evicted */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} turned_away MAP;

INLINE bool is_wanted(struct task_struct *task, const struct admission *rule)
{
	if (rule->mode == ADMIT_NOBODY || (rule->mode == ADMIT_USER && (u32)bpf_get_current_uid_gid() != rule->uid))
		return false;
	/* the agent, and the child processes that ask the driver for it */
	return (u32)task->tgid != rule->agent_pid && (u32)task->real_parent->tgid != rule->agent_pid;
}

/* Counts and reports a process once, however often it calls. */
INLINE void turn_away(struct task_struct *task)
{
	u64 start = process_start_of_task(task), *known;
	struct lifecycle_record *record;
	u32 pid = task->tgid;

	known = bpf_map_lookup_elem(&turned_away, &pid);
	if (known && *known == start)
		return;
	bpf_map_update_elem(&turned_away, &pid, &start, BPF_ANY);
	count_drop(DROP_PROCESS_SLOTS_FULL, 1);
	record = reserve_lifecycle(task, NO_SLOT, LIFECYCLE_ADMIT);
	if (record)
		submit_lifecycle(record);
}

/* The slot of a caller that had none, or NO_SLOT: every call of a process that is not wanted takes this path. */
NOINLINE u32 admit(struct task_struct *task)
{
	u32 zero = 0, pid = task->tgid, slot;
	struct admission *rule = bpf_map_lookup_elem(&admission, &zero);
	struct lifecycle_record *record;

	if (!rule || !is_wanted(task, rule))
		return NO_SLOT;
	slot = take_slot(task->group_leader, NO_SLOT, BPF_NOEXIST);
	if (slot == NO_SLOT) {
		slot = slot_of(pid); /* the last slot may have gone to another thread of this process */
		if (slot == NO_SLOT)
			turn_away(task);
		return slot;
	}
	record = reserve_lifecycle(task, slot, LIFECYCLE_ADMIT);
	if (record)
		submit_lifecycle(record);
	return slot;
}

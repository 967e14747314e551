/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The id of the cgroup that a task belongs to: the inode number of its directory. */
#pragma once
#include "kernel.h"

/*
 * The v2 cgroup's id, unless the memory controller has a v1 hierarchy of its own; then that cgroup's. On such hosts the
 * v2 tree is empty or contains only services, while every container has a memory cgroup. discover/cgroups.py follows
 * the same rule by what is mounted. is_often: `task` is one that the verifier trusts (the current task, or a tracepoint
 * argument), and its pointers are followed directly.
 */
INLINE u64 cgroup_id_by(struct task_struct *task, bool is_often)
{
#define FOLLOWED(source) (is_often ? (source) : copied(source))
	struct css_set *set = FOLLOWED(task->cgroups);
	struct cgroup *cgroup = FOLLOWED(set->dfl_cgrp), *memory;
	struct cgroup_subsys_state *state;

	if (enum_exists(enum cgroup_subsys_id, memory_cgrp_id)) {
		state = FOLLOWED(set->subsys[enum_value(enum cgroup_subsys_id, memory_cgrp_id)]);
		memory = FOLLOWED(state->cgroup);
		if (FOLLOWED(memory->root) != FOLLOWED(cgroup->root))
			cgroup = memory;
	}
	return FOLLOWED(FOLLOWED(cgroup->kn)->id);
#undef FOLLOWED
}

/* For what happens thousands of times a second. */
INLINE u64 cgroup_id_of(struct task_struct *task)
{
	return cgroup_id_by(task, true);
}

/* For what happens seldom. */
INLINE u64 cgroup_id_copied(struct task_struct *task)
{
	return cgroup_id_by(task, false);
}

/* When the process of a task was started. */
INLINE u64 process_start_of_task(struct task_struct *task)
{
	return copied(copied(task->group_leader)->start_boottime);
}

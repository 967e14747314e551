/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The id of the cgroup that a task belongs to: the inode number of its directory. */
#pragma once
#include "kernel.h"

/*
 * The v2 cgroup's id, unless the memory controller has a v1 hierarchy of its own; then that cgroup's. On such hosts the
 * v2 tree is empty or contains only services, while every container has a memory cgroup. discover/cgroups.py follows
 * the same rule by what is mounted. `task` must be one that the verifier trusts (the current task, or a tracepoint
 * argument).
 */
INLINE u64 cgroup_id_of(struct task_struct *task)
{
	struct css_set *set = task->cgroups;
	struct cgroup *unified = set->dfl_cgrp;
	struct cgroup_subsys_state *memory;

	if (!enum_exists(enum cgroup_subsys_id, memory_cgrp_id))
		return unified->kn->id;
	memory = set->subsys[enum_value(enum cgroup_subsys_id, memory_cgrp_id)];
	if (memory->cgroup->root == unified->root)
		return unified->kn->id;
	return memory->cgroup->kn->id;
}

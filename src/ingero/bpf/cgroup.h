/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The id of the cgroup that a task belongs to: the inode number of its directory. */
#pragma once
#include "kernel.h"

/*
 * The v2 cgroup's id. On hosts that keep the controllers in v1 every task is in the v2 root (level 0), which tells
 * nothing: there it is the memory controller's. 0 if neither is compiled in. `task` must be one the verifier trusts
 * (the current task, or a tracepoint's argument).
 */
INLINE u64 cgroup_id_of(struct task_struct *task)
{
	struct css_set *set = task->cgroups;
	struct cgroup *unified = set->dfl_cgrp;
	struct cgroup_subsys_state *memory;

	if (unified->level > 0 || !enum_exists(enum cgroup_subsys_id, memory_cgrp_id))
		return unified->kn->id;
	memory = set->subsys[enum_value(enum cgroup_subsys_id, memory_cgrp_id)];
	return memory->cgroup->kn->id;
}

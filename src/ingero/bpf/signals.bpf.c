// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Signals that stop, continue, or kill a traced process, and their senders. */
#include "host_events.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define SIGNAL_CONT 18
#define SIGNAL_TTOU 22 /* between them: SIGSTOP, SIGTSTP, SIGTTIN */
#define RESULT_DELIVERED 0 /* TRACE_SIGNAL_DELIVERED */

/* The arguments have been (signal, siginfo, task, is_group, result) in every supported kernel. */
SEC("tp_btf/signal_generate")
int signal_generate(u64 *ctx)
{
	s32 number = ctx[0], result = ctx[4];
	struct task_struct *task = (struct task_struct *)ctx[2];
	struct lifecycle_record *record;
	u32 slot;

	if (number != SIGNAL_KILL && (number < SIGNAL_CONT || number > SIGNAL_TTOU))
		return 0;
	/* SIGCONT continues the process before its handler is checked: the default, "ignored", has taken effect */
	if (result != RESULT_DELIVERED && number != SIGNAL_CONT)
		return 0;
	slot = slot_of(task->tgid);
	if (slot == NO_SLOT)
		return 0;
	record = reserve_lifecycle(LIFECYCLE_STOP_SIGNAL);
	if (!record)
		return 0;
	record->pid = task->tgid;
	record->tid = task->pid;
	record->process_slot = slot;
	record->cgroup_id = cgroup_id_copied(task);
	record->start_boottime_ns = process_start_of_task(task);
	record->code = number;
	record->other_pid = bpf_get_current_pid_tgid() >> 32;
	bpf_get_current_comm(record->comm, COMM_BYTES);
	submit_lifecycle(record);
	return 0;
}

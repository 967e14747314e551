// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Probes that were considered and left out: the least they would do, to measure what they cost everyone. */
#include "maps.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

unsigned long last_major_faults;
u64 last_enter_ns;

SEC("tp_btf/page_fault_user")
int page_fault_user(__attribute__((unused)) u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (slot_of(task->tgid) != NO_SLOT)
		last_major_faults = task->maj_flt;
	return 0;
}

SEC("tp_btf/sys_enter")
int sys_enter(u64 *ctx)
{
	long number = ctx[1];

	/* sendto ... recvmsg on x86-64: another call leaves before the lookup */
	if (number >= 44 && number <= 47 && slot_of(bpf_get_current_pid_tgid() >> 32) != NO_SLOT)
		last_enter_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/sys_exit")
int sys_exit(u64 *ctx)
{
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	long number = SYSCALL_NUMBER(regs);

	if (number >= 44 && number <= 47 && slot_of(bpf_get_current_pid_tgid() >> 32) != NO_SLOT)
		last_enter_ns = bpf_ktime_get_ns() - last_enter_ns;
	return 0;
}

/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* What a thread is doing, read from its task_struct. */
#pragma once
#include "clocks.h"

/* on_rq alone is wrong since 6.12: a sleeper may stay queued until it is picked (sched_delayed). */
INLINE bool is_runnable(struct task_struct *task)
{
	if (!task->on_rq)
		return false;
	return !(field_exists(task->se.sched_delayed) && task->se.sched_delayed);
}

/*
 * Interrupts and exceptions leave -1 as the system call number, so a preempted spinning thread is not taken for a
 * yield.
 */
INLINE bool is_in_sched_yield(struct task_struct *task)
{
	struct pt_regs *registers = (struct pt_regs *)bpf_task_pt_regs(task);

	return registers && SYSCALL_NUMBER(registers) == SYS_SCHED_YIELD;
}

/*
 * The word in the program's own memory that a sleeper waits at; of another system call OTHER_CALL, below any such word.
 * 0: outside of any.
 */
INLINE u64 slept_at(struct task_struct *task)
{
	struct pt_regs *registers = (struct pt_regs *)bpf_task_pt_regs(task);
	long number;

	if (!registers)
		return 0;
	number = SYSCALL_NUMBER(registers);
	if (number == SYS_FUTEX)
		return SYSCALL_FIRST(registers);
	return number >= 0 && number < MOST_SYSCALLS ? OTHER_CALL(number) : 0;
}

INLINE u8 sleep_state(struct task_struct *task, u32 task_state)
{
	if (task_state & (TASK_STOPPED_OR_TRACED | TASK_FROZEN) || task->jobctl & JOBCTL_TRAP_FREEZE)
		return STATE_STOPPED;
	if (read_bitfield(task, in_iowait))
		return STATE_IO;
	return task_state & TASK_UNINTERRUPTIBLE ? STATE_UNINTERRUPTIBLE : STATE_SLEEP;
}

/* `task_state` is the one that sched_switch passes: by then a waker may have overwritten the task's own. */
INLINE u8 state_at_switch_out(struct task_struct *task, bool is_preempted, u32 task_state)
{
	if (!is_runnable(task))
		return sleep_state(task, task_state);
	if (field_exists(task->throttled) && task->throttled)
		return STATE_THROTTLED;
	return !is_preempted && is_in_sched_yield(task) ? STATE_YIELDED : STATE_RUNQ;
}

/* What a thread seems to do while nothing holds it still; only its first event is certain. */
INLINE u8 state_hint(struct task_struct *task)
{
	if (task->on_cpu)
		return STATE_RUN;
	return is_runnable(task) ? STATE_RUNQ : sleep_state(task, READ_ONCE(task->__state));
}

#define HAS_QUEUE field_exists(((struct task_struct *)0)->se.cfs_rq)

/*
 * The task's own queue; NULL in kernels without queues of groups (HAS_QUEUE). Taken before paths part: where a program
 * follows a pointer of a task, the verifier searches the names of all kernel types, 2 ms for each path that comes by.
 */
INLINE struct cfs_rq *queue_of(struct task_struct *task)
{
	return field_exists(task->se.cfs_rq) ? READ_ONCE(task->se.cfs_rq) : NULL;
}

/* The clock of the kernel's own accounting of tasks: unlike the one that books run time, it never stands still. */
INLINE u64 queue_clock(struct cfs_rq *queue)
{
	return HAS_QUEUE ? queue->rq->clock : 0;
}

/* The same, for readers. */
INLINE u64 queue_clock_copied(struct task_struct *task)
{
	return HAS_QUEUE ? copied(copied(copied(task->se.cfs_rq)->rq)->clock) : 0;
}

/* The CPU whose run queue the task is on. */
INLINE u32 cpu_of(struct task_struct *task)
{
	if (field_exists(task->thread_info.cpu))
		return task->thread_info.cpu;
	return task->cpu;
}

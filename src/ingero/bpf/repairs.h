/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * A thread that executes a probed call is running. If its recorded state says otherwise, its switch-in was missed, and
 * the thread repairs the state: the kernel's own notes tell when it came on.
 *
 * Where the kernel may preempt this program, a scheduler program may come in between and repair the state first. The
 * program that changes the thread's standing, with one compare-and-swap, does the repair; what follows are additions,
 * which may come late. On other CPUs nothing changes the state of a running thread.
 */
#pragma once
#include "states.h"
#include "throttling.h"
#include "waiters.h"

/* What a thread was last known to do, and how the time since then is divided now that it is known to run. */
struct repair {
	u64 since_ns;
	u64 woken_ns; /* end of the sleep; `since_ns`: it did not sleep */
	u64 on_ns;    /* end of the wait */
	u64 throttled_ns;
};

/*
 * When a running thread came on the CPU: as long after it left as the kernel's own note of the arrival says. It has run
 * at least as long as is booked since; without such a note, that is all that is known.
 */
INLINE u64 came_on_ns(struct thread *thread, struct task_struct *task, u64 since)
{
	u64 now = bpf_ktime_get_ns(), left = thread->queue_clock_at_off_ns, arrived = 0, latest, at;

	latest = thread->exec_is_known ? now - (task->se.sum_exec_runtime - thread->exec_at_off_ns) : now;
	if (field_exists(task->sched_info.last_arrival))
		arrived = task->sched_info.last_arrival;
	at = left && arrived > left ? thread->last_off_ns + (arrived - left) : latest;
	if ((s64)(at - latest) > 0)
		at = latest;
	return (s64)(at - since) > 0 ? at : since;
}

/*
 * How the time since the last known moment was spent. A sleep whose end was not seen lasted until the thread came on.
 */
INLINE void divide_span(struct repair *repair, struct thread *thread, struct task_struct *task, u8 state)
{
	u64 waking = READ_ONCE(thread->waking_ns);

	repair->since_ns = READ_ONCE(thread->since_ns);
	repair->on_ns = came_on_ns(thread, task, repair->since_ns);
	repair->woken_ns = repair->since_ns;
	repair->throttled_ns = 0;
	if (is_wait(state))
		repair->throttled_ns = throttled_part(thread, throttled_clock(queue_of(task)), repair->on_ns - repair->since_ns);
	else
		repair->woken_ns = waking > repair->since_ns && waking <= repair->on_ns ? waking : repair->on_ns;
}

INLINE void move_to_clock(struct thread *thread, u32 state, u64 ns)
{
	u64 index = CLOCK(state);

	asm volatile("%0 &= 7" : "+r"(index)); /* STATES - 1 */
	__sync_fetch_and_add(&thread->clocks.ns[index], ns);
	__sync_fetch_and_add(&thread->clocks.ns[CLOCK(STATE_RUN)], -ns);
}

/* What follows from the change of standing: the waits, and what ended a sleep, as a switch-in would have left them. */
INLINE void book_repair(struct thread *thread, struct task_struct *task, struct repair *repair, u8 state)
{
	struct offcpu_interval interval = {};

	if (is_sleep(state)) {
		move_to_clock(thread, state, repair->woken_ns - repair->since_ns);
		move_to_clock(thread, STATE_RUNQ, repair->on_ns - repair->woken_ns);
		if (repair->woken_ns == repair->on_ns)
			forget_waker(thread);
		note_woken(thread, state, repair->woken_ns);
		count_drop(DROP_WAKEUP_MISSED, 1);
	} else {
		move_to_clock(thread, STATE_THROTTLED, repair->throttled_ns);
		move_to_clock(thread, state, repair->on_ns - repair->since_ns - repair->throttled_ns);
	}
	if (!thread->last_off_ns || repair->on_ns - thread->last_off_ns < OFFCPU_MIN_NS)
		return;
	describe_offcpu(&interval, thread, switches_of(task), bpf_get_smp_processor_id(), repair->on_ns);
	send_offcpu(&interval, thread->process_slot, task->tgid, task->pid, task->comm);
}

/* The calling thread runs; see above. */
GLOBAL int repair_own_account(struct thread *thread)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct repair repair;
	u64 seen, running;
	u32 joined;
	u8 state;

	if (!thread)
		return 0;
	seen = READ_ONCE(*standing_of(thread));
	state = seen >> STANDING_STATE;
	if (seen & 1 || (!is_wait(state) && !is_sleep(state)))
		return 0;
	divide_span(&repair, thread, task, state);
	joined = __sync_lock_test_and_set(&thread->wait_cpu, 0);
	if (joined == bpf_get_smp_processor_id() + 1)
		charge_nobody(wait_slot_of(seen), repair.on_ns);
	if (joined)
		leave_cpu(joined - 1, wait_slot_of(seen), repair.on_ns);
	running = (seen & ~(0xffULL << STANDING_STATE)) | (u64)STATE_RUN << STANDING_STATE;
	if (__sync_val_compare_and_swap(standing_of(thread), seen, running + 1) != seen)
		return 0;
	thread->last_on_ns = repair.on_ns;
	__sync_fetch_and_add(&thread->flaws, 1);
	book_repair(thread, task, &repair, state);
	__sync_fetch_and_add(&thread->sequence, 1);
	if (!joined)
		count_unknown_culprit(wait_slot_of(seen), repair.on_ns - repair.woken_ns - repair.throttled_ns);
	count_drop(DROP_SWITCH_IN_MISSED, 1);
	count_drop(DROP_REPAIRED_NS, bpf_ktime_get_ns() - repair.on_ns);
	return 0;
}

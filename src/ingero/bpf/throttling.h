/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * How much of a wait a CPU quota caused: the growth of the throttled clock of the task's own queue.
 *
 * An ancestor's throttling reaches the task's own queue, and nothing tells when it ends. Kernels that throttle tasks
 * one by one (6.18) mark them at the switch-out; before, a whole group is throttled and every wait has to be split.
 */
#pragma once
#include "states.h"

#define NO_THROTTLED_CLOCK (~0ull)
#define THROTTLED_SLACK_NS 100000 /* rq->clock lags behind CLOCK_MONOTONIC by up to a tick's work */

INLINE bool throttles_tasks(void)
{
	return field_exists(((struct task_struct *)0)->throttled);
}

/* Throttled time of a task's queue so far, the open part included; 0 without CPU quotas in the kernel. */
INLINE u64 throttled_clock(struct cfs_rq *queue)
{
	u64 since;

	if (!HAS_QUEUE)
		return 0;
	if (field_exists(queue->throttled_clock_self)) {
		since = queue->throttled_clock_self;
		return queue->throttled_clock_self_time + (since ? queue->rq->clock - since : 0);
	}
	if (field_exists(queue->throttled_clock_task_time)) {
		since = queue->throttle_count ? queue->rq->clock_task - queue->throttled_clock_task : 0;
		return queue->throttled_clock_task_time + since;
	}
	if (!field_exists(queue->throttled_clock_pelt_time))
		return 0;
	/* 6.1 keeps only the PELT clock per queue: real time where all CPUs have the same capacity */
	since = queue->throttle_count ? queue->rq->clock_pelt - queue->rq->lost_idle_time - queue->throttled_clock_pelt : 0;
	return queue->throttled_clock_pelt_time + since;
}

/* At the start of a wait. */
INLINE void note_throttled_clock(struct thread *thread, struct cfs_rq *queue)
{
	bool is_needed = !throttles_tasks() || thread->state == STATE_THROTTLED;

	thread->throttled_at_off_ns = is_needed ? throttled_clock(queue) : NO_THROTTLED_CLOCK;
}

/*
 * The throttled part of a wait that is still going on, for readers; 0 where tasks are marked, because the state says it
 * there. The queue's own time stands still while its CPU idles, so the part may be too short, never too long.
 */
INLINE u64 throttled_so_far(struct task_struct *task, u64 throttled_at_off_ns, u64 wait_ns)
{
	s64 grown;

	if (throttles_tasks() || throttled_at_off_ns == NO_THROTTLED_CLOCK)
		return 0;
	grown = throttled_clock(queue_of(task)) - throttled_at_off_ns;
	if (grown <= 0)
		return 0;
	return (u64)grown < wait_ns ? (u64)grown : wait_ns;
}

/* The throttled part of a wait of `wait_ns` that ends now; `clock`: throttled_clock() of the task's queue. */
INLINE u64 throttled_part(struct thread *thread, u64 clock, u64 wait_ns)
{
	s64 grown;

	if (thread->throttled_at_off_ns == NO_THROTTLED_CLOCK)
		return 0;
	grown = clock - thread->throttled_at_off_ns;
	if (thread->state == STATE_THROTTLED && (grown < 0 || grown > (s64)wait_ns + THROTTLED_SLACK_NS)) {
		count_drop(DROP_THROTTLE_CLOCK_ODD, 1); /* moved to another CPU's queue meanwhile */
		return wait_ns;
	}
	if (grown < 0)
		return 0;
	return (u64)grown < wait_ns ? (u64)grown : wait_ns;
}

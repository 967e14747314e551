/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * What launches on a stream take by themselves, learned from the launches. A program that never waits has a thousand
 * calls outstanding by everything that is seen of it, whether its queue is full or its driver slow: the durations of
 * the calls decide.
 *
 * On a full queue the GPU paces the returns, so that after a pause of the host launches find room and are fast; and
 * among a few hundred there are kernels so short that no launch waits for them. If every launch is slow, after a pause
 * or not, the launch itself is slow. If each is slow and none is known to have found room, nothing is known.
 */
#pragma once
#include "events.h"

#define LEARNED_LAUNCHES 256
#define LATE_SPACINGS 3 /* in a pause as long as this many launches take, the GPU works some of them off */
#define KEPT_LESSONS 4	/* without a launch that found room */
/*
 * A call that only enqueues returns within 30 us: on five kinds of GPU 97.5% of the launches that took longer waited
 * for room in the queue, and most of those between 20 and 30 us did not. Also the time that a sync takes that does not
 * wait.
 */
#define BLOCKED_MIN_NS 30000

/* 0: not known */
struct launch_times {
	u64 returned_ns; /* the newest launch, plus as much as copies have taken since */
	u64 learned_ns;	 /* when, and at which launch, the last lesson ended */
	u64 learned_at;
	u64 late_ns;	/* a pause this long leaves room in a full queue */
	u32 fastest_ns; /* since then: of all, and of those that certainly found room */
	u32 fastest_with_room_ns;
	u32 cost_ns; /* the same of the last lesson */
	u32 cost_with_room_ns;
	u32 lessons; /* since the last launch that found room */
	u32 pad;
};

/*
 * Whether a launch certainly found room: `is_short`, the queue is known to hold less, or it came late. What took longer
 * than the time between launches waited for a long kernel all the same.
 */
INLINE bool has_found_room(const struct launch_times *times, u64 start_ns, u64 took_ns, bool is_short)
{
	if (is_short)
		return true;
	return times->late_ns && start_ns - times->returned_ns >= times->late_ns &&
	       took_ns * LATE_SPACINGS <= times->late_ns;
}

INLINE void note_fastest(u32 *fastest_ns, u32 took_ns)
{
	if (!*fastest_ns || took_ns < *fastest_ns)
		*fastest_ns = took_ns;
}

/* A launch has returned, the `launches`th. Returns whether a lesson is over. */
INLINE bool note_launch_time(struct launch_times *times, u64 launches, u64 start_ns, u64 took_ns, bool is_short)
{
	u32 took = took_ns >> 32 ? ~0U : (u32)took_ns | !took_ns;

	note_fastest(&times->fastest_ns, took);
	if (has_found_room(times, start_ns, took_ns, is_short))
		note_fastest(&times->fastest_with_room_ns, took);
	return launches - times->learned_at >= LEARNED_LAUNCHES;
}

/* A lesson is over. */
INLINE void learn_launch_cost(struct launch_times *times, u64 launches, u64 now)
{
	u64 count = launches - times->learned_at;

	if (times->learned_ns && count)
		times->late_ns = (now - times->learned_ns) / count * LATE_SPACINGS;
	times->cost_ns = times->fastest_ns;
	if (times->fastest_with_room_ns) {
		times->cost_with_room_ns = times->fastest_with_room_ns;
		times->lessons = 0;
	} else if (++times->lessons > KEPT_LESSONS) {
		times->cost_with_room_ns = 0;
	}
	times->fastest_ns = times->fastest_with_room_ns = 0;
	times->learned_ns = now;
	times->learned_at = launches;
}

/*
 * How much of a launch on a queue that may be full was waiting for room: what it took longer than a launch does. Where
 * launches are fast, all of it. -1: not known.
 */
INLINE s64 waited_for_room(const struct launch_times *times, u64 spent_ns)
{
	u64 cost_ns = times->cost_with_room_ns;

	if (times->cost_ns < BLOCKED_MIN_NS)
		return spent_ns;
	if (!cost_ns)
		return -1;
	return spent_ns >= cost_ns + BLOCKED_MIN_NS ? spent_ns - cost_ns : 0;
}

/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Which sleeps of a thread are walked as they begin: all of them, as long as there are not too many; otherwise a random
 * share, each with the same chance. So the walked ones stand for the rest, and short sleeps that follow long ones are
 * not missed.
 */
#pragma once
#include "python_walk.h"

#define LOOKS_PERIOD_NS 250000000ULL
/* Walks of a thread per period. Each takes 10 us, because caches are cold where a thread seldom runs. */
#define OFTEN_LOOKED_AT 32  /* a main thread, and one that makes traced calls */
#define SELDOM_LOOKED_AT 8 /* the other threads may number in the hundreds */
#define MOST_RARITY 16

INLINE bool has_python(struct thread *thread)
{
	u32 slot = thread->process_slot & (MAX_PROCESSES - 1);
	struct python_layout *layout = bpf_map_lookup_elem(&python_layouts, &slot);

	return layout && layout->runtime;
}

/*
 * Whether this sleep is to be walked, so that there are about `most` walks a period. Only the thread itself calls this.
 */
INLINE bool is_turn(struct sleep_looks *sleep, u64 now, u32 most)
{
	u32 rarity = sleep->rarity;

	if (rarity > MOST_RARITY)
		rarity = MOST_RARITY;
	if (now - sleep->since_ns >= LOOKS_PERIOD_NS) {
		if (rarity && sleep->looks < most / 4)
			rarity--;
		sleep->rarity = rarity;
		sleep->since_ns = now;
		sleep->looks = 0;
	}
	if (bpf_get_prandom_u32() & ((1U << rarity) - 1))
		return false;
	if (++sleep->looks >= most) {
		sleep->looks = most / 2;
		sleep->rarity = rarity + 1;
	}
	return true;
}

/* What was found as a sleep began. A reader on another CPU meanwhile sees no switches, and so nothing. */
INLINE void note_sleep(struct sleep_looks *sleep, u32 switches, u64 python_stack)
{
	u32 before = __sync_lock_test_and_set(&sleep->switches, 0); /* a full barrier, as the next */

	WRITE_ONCE(sleep->python_stack, python_stack);
	before |= __sync_lock_test_and_set(&sleep->switches, switches);
	OPAQUE(before);
}

/* Whether a sleep was walked, and what was found. It may end, and another one be noted, at any time. */
INLINE bool stack_of_sleep(struct sleep_looks *sleep, u32 switches, u64 *python_stack)
{
	u32 before = READ_ONCE(sleep->switches);
	u64 found = READ_ONCE(sleep->python_stack);

	barrier();
	if (!switches || before != switches || READ_ONCE(sleep->switches) != switches)
		return false;
	*python_stack = found;
	return true;
}

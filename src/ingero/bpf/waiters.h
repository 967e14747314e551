/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Threads that wait for a CPU: they join and leave its integral of waiting time (struct waiters), from any CPU. */
#pragma once
#include "cpus.h"

#define WAITERS_MASK 0xffff
#define SUM_BITS 48

/* `add` is followed by a full barrier; clang drops it on arm64 when the old value is not used. */
INLINE void add_waiting(struct cpu *cpu, u32 slot, u64 add)
{
	u64 index = slot & (WAIT_SLOTS - 1), word, bit = 1ull << (index & 63), old;

	asm volatile("%0 &= %1" : "+r"(index) : "i"(WAIT_SLOTS - 1)); /* WAIT_SLOTS - 1 where the verifier sees it */
	old = __sync_fetch_and_add(&cpu->waiters[index].joined, add);
	OPAQUE(old);
	word = index >> 6;
	asm volatile("%0 &= %1" : "+r"(word) : "i"(WAIT_WORDS - 1));
	if (!(READ_ONCE(cpu->active[word]) & bit)) {
		old = __sync_fetch_and_or(&cpu->active[word], bit);
		OPAQUE(old);
	}
	if (!(READ_ONCE(cpu->active_words) & (1ull << word)))
		__sync_fetch_and_or(&cpu->active_words, 1ull << word);
}

/* What the waiters of one slot have waited until `at`, all together. */
INLINE u64 waited_until(u64 joined, u64 at)
{
	return ((joined & WAITERS_MASK) * at - (joined >> 16)) & ((1ull << SUM_BITS) - 1);
}

INLINE s64 not_charged(u64 waited, u64 charged)
{
	return (s64)((waited - charged) << (64 - SUM_BITS)) >> (64 - SUM_BITS);
}

/* A thread that has given up the CPU itself (a yield) has no culprit. */
INLINE void count_unknown_culprit(u32 slot, u64 ns)
{
	if (slot < MAX_PROCESSES)
		count_drop(DROP_CULPRIT_UNKNOWN_NS, ns);
}

/* A switch of this CPU was missed: what ran until `at` while the waiters of this slot waited is not known. */
INLINE void charge_nobody(u32 slot, u64 at)
{
	u64 index = slot & (WAIT_SLOTS - 1), waited, charged;
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return;
	asm volatile("%0 &= %1" : "+r"(index) : "i"(WAIT_SLOTS - 1));
	charged = READ_ONCE(cpu->waiters[index].charged_ns);
	waited = waited_until(READ_ONCE(cpu->waiters[index].joined), at);
	if (not_charged(waited, charged) > 0 &&
	    __sync_val_compare_and_swap(&cpu->waiters[index].charged_ns, charged, waited) == charged)
		count_unknown_culprit(slot, not_charged(waited, charged));
}

INLINE u32 wait_slot_of(u64 seen)
{
	return (seen >> STANDING_SLOT) + ((u8)(seen >> STANDING_STATE) == STATE_YIELDED ? MAX_PROCESSES : 0);
}

INLINE u32 wait_slot(struct thread *thread)
{
	return wait_slot_of(READ_ONCE(*standing_of(thread)));
}

/* The thread waits for a CPU from `at` on, which may lie in the past. */
INLINE void join_waiters(struct thread *thread, u32 index, u64 at)
{
	struct cpu *cpu = cpu_at(index);

	if (!cpu)
		return;
	add_waiting(cpu, wait_slot(thread), (at << 16) + 1);
	thread->wait_cpu = index + 1;
	thread->joined_ns = at;
}

/* The waiter that joined CPU `index` in `slot` stopped waiting at `at`, which may lie in the past. */
INLINE void leave_cpu(u32 index, u32 slot, u64 at)
{
	struct cpu *cpu = cpu_at(index);

	if (cpu)
		add_waiting(cpu, slot, -((at << 16) + 1));
}

INLINE void leave_waiters(struct thread *thread, u64 at)
{
	u32 index = thread->wait_cpu - 1;

	thread->wait_cpu = 0;
	leave_cpu(index, wait_slot(thread), at);
}

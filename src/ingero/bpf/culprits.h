/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Which processes ran while the threads of a traced process waited for a CPU.
 *
 * Each (CPU, affected process) has one integral of waiting time (struct waiters). At each context switch its growth is
 * attributed to the process that ran until now, so a switch costs one step per affected process, however many threads
 * wait.
 */
#pragma once
#include "cgroup.h"
#include "waiters.h"

#define FLUSH_SLOTS 64 /* per context switch; the rest is attributed at later ones */

/* preallocated: the scheduler programs insert into it while a run queue is locked */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(max_entries, 16384);
	MAP_TYPE(key, struct culprit_key);
	MAP_TYPE(value, struct culprit_value);
} culprits MAP;

/* The leader's name and the cgroup, read once: for each pointer on the way the verifier searches all kernel types. */
INLINE void describe_culprit(struct culprit_value *value, struct task_struct *task)
{
	value->cgroup_id = cgroup_id_of(task);
	read_comm(value->comm, task->group_leader->comm);
}

/* Another program or cgroup since time was last attributed to it, or another process with the same number. */
INLINE bool is_changed(const struct culprit_value *value, const struct culprit_value *now)
{
	const u64 *before = (const u64 *)value->comm, *after = (const u64 *)now->comm;

	return before[0] != after[0] || before[1] != after[1] || value->cgroup_id != now->cgroup_id;
}

INLINE void charge(u32 slot, struct task_struct *culprit, u64 ns)
{
	struct culprit_key key = {
		.culprit_pid = culprit->tgid,
		.process_slot = slot & (MAX_PROCESSES - 1),
		.yielded = slot >= MAX_PROCESSES,
	};
	struct culprit_value now = {}, *value;

	describe_culprit(&now, culprit);
	value = bpf_map_lookup_elem(&culprits, &key);
	if (!value) {
		bpf_map_update_elem(&culprits, &key, &now, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&culprits, &key);
	}
	if (!value) {
		count_drop(DROP_CULPRITS_FULL, 1);
		count_unknown_culprit(slot, ns);
		return;
	}
	if (key.culprit_pid && unlikely(is_changed(value, &now))) { /* the idle task has a name on each CPU */
		value->cgroup_id = now.cgroup_id;
		__builtin_memcpy(value->comm, now.comm, COMM_BYTES);
	}
	__sync_fetch_and_add(&value->ns, ns);
	__sync_fetch_and_add(&value->switches, 1);
}

/* No more waiters in this slot; a join that comes between the two reads sets the bits again. */
INLINE void clear_slot(struct cpu *cpu, u64 index, u64 seen)
{
	u64 word = index >> 6, bit = 1ull << (index & 63), old;

	asm volatile("%0 &= %1" : "+r"(word) : "i"(WAIT_WORDS - 1));
	old = __sync_fetch_and_and(&cpu->active[word], ~bit);
	OPAQUE(old);
	if (READ_ONCE(cpu->waiters[index].joined) != seen) {
		__sync_fetch_and_or(&cpu->active[word], bit);
		return;
	}
	if (READ_ONCE(cpu->active[word]))
		return;
	old = __sync_fetch_and_and(&cpu->active_words, ~(1ull << word));
	OPAQUE(old);
	if (READ_ONCE(cpu->active[word]))
		__sync_fetch_and_or(&cpu->active_words, 1ull << word);
}

/* Attributes what one slot's waiters on this CPU have waited since the last time to the current task, which ran. */
GLOBAL int flush_slot(u32 slot, u64 now)
{
	u64 index = slot, joined, count, waited;
	struct cpu *cpu = this_cpu();
	s64 grown;

	if (!cpu)
		return 0;
	asm volatile("%0 &= %1" : "+r"(index) : "i"(WAIT_SLOTS - 1));
	joined = READ_ONCE(cpu->waiters[index].joined);
	count = joined & WAITERS_MASK;
	waited = waited_until(joined, now);
	grown = not_charged(waited, cpu->waiters[index].charged_ns);
	if (grown > 0) {
		cpu->waiters[index].charged_ns = waited;
		charge(slot, bpf_get_current_task_btf(), grown);
	} else if (grown < 0) {
		/*
		 * a repair removed a waiter in the past; what was attributed in excess is deducted from the next time
		 */
		count_drop(DROP_CULPRIT_NEGATIVE, 1);
	}
	if (!count)
		clear_slot(cpu, index, joined);
	return 0;
}

/*
 * Index of the lowest bit set: the number of ones below it. Without branches, which the verifier would follow, and
 * verified once, not in each round of a loop.
 */
GLOBAL u32 lowest_bit(u64 bits)
{
	bits = (bits & -bits) - 1;
	bits -= bits >> 1 & 0x5555555555555555ull;
	bits = (bits & 0x3333333333333333ull) + (bits >> 2 & 0x3333333333333333ull);
	bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0full;
	return bits * 0x0101010101010101ull >> 56 & 63;
}

/* Attributes the waiting on this CPU since its last switch to the current task, which ran meanwhile and now leaves. */
GLOBAL int flush_waiters(u64 now)
{
	struct cpu *cpu = this_cpu();
	struct scan *scan;
	u64 words, later;

	if (!cpu)
		return 0;
	scan = &cpu->scan;
	words = READ_ONCE(cpu->active_words);
	later = words & (~0ull << (scan->word & (WAIT_WORDS - 1)));
	/* where the last flush ran out of budget, else from the beginning */
	WRITE_ONCE(scan->words, later ? later : words);
	for (int step = 0; step < FLUSH_SLOTS + WAIT_WORDS; step++) {
		u64 slots = READ_ONCE(scan->slots), word = READ_ONCE(scan->word);

		if (slots) {
			WRITE_ONCE(scan->slots, slots & (slots - 1));
			flush_slot(word * 64 + lowest_bit(slots), now);
			continue;
		}
		words = READ_ONCE(scan->words);
		if (!words) {
			WRITE_ONCE(scan->word, 0);
			return 0;
		}
		WRITE_ONCE(scan->words, words & (words - 1));
		word = lowest_bit(words);
		asm volatile("%0 &= %1" : "+r"(word) : "i"(WAIT_WORDS - 1));
		WRITE_ONCE(scan->word, word);
		WRITE_ONCE(scan->slots, READ_ONCE(cpu->active[word]));
	}
	WRITE_ONCE(scan->slots, 0);
	return 0;
}

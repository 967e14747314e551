/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The calling thread's state times as they are now, at the start and at the return of a call. */
#pragma once
#include "repairs.h"

#define SNAPSHOT_TRIES 3

/* Why times that were read cannot be trusted, or DROP_NONE. `before`: the sequence when the reading began. */
INLINE u32 fault_of_reading(struct thread *thread, u32 before, u8 state)
{
	if (unlikely((before & 1) || before != READ_ONCE(thread->sequence)))
		return DROP_SNAPSHOT_TORN;
	return unlikely(state != STATE_RUN && state != STATE_INIT) ? DROP_SNAPSHOT_NOT_RUNNING : DROP_NONE;
}

/* The present interval is one of running, because the thread is here. The time is read last, as in `note_beginning`. */
INLINE u32 read_beginning(struct thread *thread, struct open_call *call)
{
	u32 before = READ_ONCE(thread->sequence);
	u64 since = READ_ONCE(thread->since_ns), now;
	u8 state = READ_ONCE(thread->state);

	call->clocks = thread->clocks;
	call->switches = thread->switches;
	call->preemptions = thread->preemptions;
	call->flaws = thread->flaws;
	call->sequence = before;
	now = bpf_ktime_get_ns();
	call->start_ns = now;
	call->clocks.ns[CLOCK(STATE_RUN)] += now - since;
	barrier();
	return fault_of_reading(thread, before, state);
}

/* The first reading had this fault. What was missed before the call began does not affect the call. */
GLOBAL int note_beginning_again(struct thread *thread, struct open_call *call, u32 fault)
{
	if (!thread || !call)
		return 0;
	for (int try = 1; try < SNAPSHOT_TRIES; try++) {
		if (fault == DROP_SNAPSHOT_NOT_RUNNING)
			repair_own_account(thread);
		fault = read_beginning(thread, call);
		if (!fault)
			return 0;
	}
	call->flaws = FLAWS_UNKNOWN;
	count_drop(fault, 1);
	return 0;
}

/*
 * The calling thread's state times at the start of `call`, its running interval included. The time is read last:
 * everything after it is included in the call's time.
 */
INLINE void note_beginning(struct thread *thread, struct open_call *call)
{
	u32 fault = read_beginning(thread, call);

	if (unlikely(fault))
		note_beginning_again(thread, call, fault);
}

INLINE u32 read_snapshot(struct thread *thread, struct snapshot *snapshot)
{
	u32 before = READ_ONCE(thread->sequence);
	u64 now = bpf_ktime_get_ns(), since = READ_ONCE(thread->since_ns);
	u8 state = READ_ONCE(thread->state);

	snapshot->clocks = thread->clocks;
	snapshot->switches = thread->switches;
	snapshot->preemptions = thread->preemptions;
	snapshot->flaws = thread->flaws;
	snapshot->now_ns = now;
	snapshot->clocks.ns[CLOCK(STATE_RUN)] += now - since;
	barrier();
	return fault_of_reading(thread, before, state);
}

/* The first reading had this fault. A repair shows in `flaws` that something was missed since the call began. */
GLOBAL int take_snapshot_again(struct thread *thread, struct snapshot *snapshot, u32 fault)
{
	if (!thread || !snapshot)
		return 0;
	for (int try = 1; try < SNAPSHOT_TRIES; try++) {
		if (fault == DROP_SNAPSHOT_NOT_RUNNING)
			repair_own_account(thread);
		fault = read_snapshot(thread, snapshot);
		if (!fault)
			return 0;
	}
	snapshot->flaws = FLAWS_UNKNOWN;
	count_drop(fault, 1);
	return 0;
}

/* The calling thread's state times now, its running interval included. */
INLINE void take_snapshot(struct thread *thread, struct snapshot *snapshot)
{
	u32 fault = read_snapshot(thread, snapshot);

	if (unlikely(fault))
		take_snapshot_again(thread, snapshot, fault);
}

/* What `take_snapshot` would have found at `now_ns`, in a thread that has not left the CPU since the call began. */
INLINE void snapshot_of_running(const struct open_call *call, u64 now_ns, struct snapshot *snapshot)
{
	snapshot->now_ns = now_ns;
	snapshot->clocks = call->clocks;
	snapshot->clocks.ns[CLOCK(STATE_RUN)] += now_ns - call->start_ns;
	snapshot->switches = call->switches;
	snapshot->preemptions = call->preemptions;
	snapshot->flaws = call->flaws;
}

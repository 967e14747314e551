// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Timers of the kernel itself that came late: while a host is held up from outside (by its hypervisor, by firmware) no
 * interrupt comes, not that of a GPU that is done either, and no thread state shows it.
 *
 * A timer is due at a time that was set before. So a late one shows the end of such a pause exactly, and of its length
 * what is left from then on: a running CPU has a tick each 1 to 10 ms, an idle one those of the sampling clock. Only
 * timers that expire in the interrupt itself count, which are the kernel's own (is_hard): others also wait for soft
 * interrupts, and a program may set one to a time that has passed.
 */
#include "host_events.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define LATE_NS 1000000ULL /* disabled interrupts in the kernel, and a busy hypervisor, make a tenth of it usual */

struct hrtimer {
	s64 _softexpires;
	u8 is_hard; /* 5.4 */
} RELOCATED;

/* The latest pause that was sent: several timers, on several CPUs, are late by one. */
u64 pause_begin_ns = 0;
u64 pause_end_ns = 0;

SEC("tp_btf/hrtimer_expire_entry")
int timer_expired(u64 *ctx)
{
	struct hrtimer *timer = (struct hrtimer *)ctx[0];
	struct host_record *record;
	u64 now, due;

	if (!timer->is_hard)
		return 0;
	due = timer->_softexpires; /* of CLOCK_MONOTONIC: on another clock no such timer looks late */
	now = bpf_ktime_get_ns();
	if (likely(now < due + LATE_NS))
		return 0;
	if (due >= READ_ONCE(pause_begin_ns) && now < READ_ONCE(pause_end_ns) + LATE_NS)
		return 0;
	WRITE_ONCE(pause_begin_ns, due); /* two CPUs at once may send one more */
	WRITE_ONCE(pause_end_ns, now);
	count_host(HOST_LATE_TIMER, false, 1, 0, now - due);
	record = reserve_host(HOST_LATE_TIMER);
	if (!record)
		return 0;
	record->start_ns = due;
	record->duration_ns = now - due;
	record->arg0 = bpf_get_smp_processor_id();
	submit_host(record);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Keeps thread-state time: the scheduler's own events decide in which state a thread is.
 *
 * These programs run with a run queue locked. They only look up storage, write to no ring, and insert into one
 * preallocated hash (culprits). Every interval is closed and the next one opened with the same timestamp, so that a
 * thread's times always add up to its age; what that sum cannot show (events that never came) has counters of its own.
 */
#include "culprits.h"
#include "dump.h"
#include "membership.h"
#include "slices.h"
#include "states.h"
#include "throttling.h"
#include "wakers.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define GLIMPSE_NS 200000 /* with cold caches, the way back to a polling loop and out of it takes 20 to 100 us */

/* For tests: ignore each N-th scheduler event of tracked threads, as if it had been lost. 0 = none. */
const volatile u32 drop_every = 0;
/* sched_switch passes the state of the thread that leaves since 5.18 */
const volatile bool passes_task_state = true;

u64 droppable_events = 0;

INLINE bool is_dropped(void)
{
	return drop_every && __sync_fetch_and_add(&droppable_events, 1) % drop_every == drop_every - 1;
}

INLINE struct thread *tracked(struct task_struct *task)
{
	struct thread *thread;

	/* one load tells of nearly every task that it is not tracked */
	if (field_exists(task->bpf_storage) && !task->bpf_storage)
		return NULL;
	thread = thread_of(task);
	return thread && thread->created_ns ? thread : NULL;
}

/* Before and after each change: odd meanwhile. */
INLINE void step_sequence(struct thread *thread)
{
#if defined(__TARGET_ARCH_x86)
	barrier();
	WRITE_ONCE(thread->sequence, thread->sequence + 1);
	barrier();
#else
	u32 old = __sync_fetch_and_add(&thread->sequence, 1); /* the only full barrier there is */

	OPAQUE(old);
#endif
}

INLINE void count_flaw(struct thread *thread, u32 drop)
{
	thread->flaws++;
	count_drop(drop, 1);
}

INLINE void add_clock(struct thread *thread, u32 state, s64 ns)
{
	u64 index = CLOCK(state);

	asm volatile("%0 &= 7" : "+r"(index)); /* STATES - 1 */
	if (unlikely(ns < 0))
		count_flaw(thread, DROP_CLOCK_NEGATIVE);
	thread->clocks.ns[index] += ns;
}

/* The run time since the last switch-out that was seen; `limit_ns` if there was none. `exec_ns`: all that is booked. */
INLINE u64 run_since_switch_out(struct thread *thread, u64 exec_ns, u64 limit_ns)
{
	u64 ran = exec_ns - thread->exec_at_off_ns;

	return thread->exec_is_known && ran < limit_ns ? ran : limit_ns;
}

/*
 * For how long the thread has run since `since_ns`, as the start of its open calls proves: the kernel books less if its
 * clock stood still at a switch-in.
 */
INLINE u64 ran_to_open_calls(struct thread *thread, u64 ran, u64 limit_ns)
{
	for (int i = 0; i < OPEN_CALLS; i++) {
		u64 before_call = thread->calls[i].start_ns - thread->since_ns;

		if (thread->calls[i].sp && before_call > ran && before_call < limit_ns)
			ran = before_call;
	}
	return ran;
}

/*
 * The thread seems to be running already. It ran for as long as the kernel has booked, then left the CPU unseen: what
 * it waited for is unknown, but if it slept, it has been woken.
 */
INLINE void repair_switch_out(struct thread *thread, u64 exec_ns, u64 now)
{
	u64 most = now - thread->since_ns;
	u64 ran = ran_to_open_calls(thread, run_since_switch_out(thread, exec_ns, most), most);

	count_flaw(thread, DROP_SWITCH_OUT_MISSED);
	count_drop(DROP_REPAIRED_NS, now - thread->since_ns - ran);
	add_clock(thread, STATE_RUN, ran);
	thread->since_ns += ran;
	thread->last_off_ns = thread->since_ns;
	thread->exec_at_off_ns = exec_ns;
	thread->state = thread->waking_ns > thread->since_ns ? STATE_SLEEP : STATE_RUNQ;
	thread->last_off_state = thread->state;
	thread->last_futex = 0;
	thread->throttled_at_off_ns = NO_THROTTLED_CLOCK;
}

/*
 * The thread of a step marker falls asleep, or is woken (0): another thread that is blocked for the GPU meanwhile
 * shares that time with it. Inside a call of its own, the sleep belongs to that call.
 */
NOINLINE int note_marker_asleep(struct thread *thread, u64 since_ns)
{
	u32 slot = thread->process_slot;
	struct process *process = bpf_map_lookup_elem(&processes, &slot);

	if (!process || process->marker_tid != thread->marks_steps)
		return 0;
	for (int i = 0; i < OPEN_CALLS; i++)
		if (thread->calls[i].sp)
			since_ns = 0;
	WRITE_ONCE(process->marker_asleep_ns, since_ns);
	return 0;
}

/* Ends a sleep at its wake-up, or at `limit` if none was seen since it began. */
INLINE void end_sleep(struct thread *thread, u8 state, u64 limit)
{
	u64 since = thread->since_ns, end = READ_ONCE(thread->waking_ns);

	if (end <= since || end > limit)
		end = limit;
	add_clock(thread, state, end - since);
	if (unlikely(thread->marks_steps))
		note_marker_asleep(thread, 0);
	thread->state = STATE_RUNQ;
	thread->since_ns = end;
	note_woken(thread, state, end);
	thread->throttled_at_off_ns = NO_THROTTLED_CLOCK;
}

/* A thread that comes on without having been seen runnable: newly tracked, or a missed event. */
INLINE void open_missing_wait(struct thread *thread, u64 exec_ns, u64 at)
{
	u8 hint = thread->hint;

	if (thread->state == STATE_INIT) {
		if (is_sleep(hint))
			end_sleep(thread, hint, at);
		thread->throttled_at_off_ns = NO_THROTTLED_CLOCK;
		thread->state = STATE_RUNQ;
		thread->exec_at_off_ns = exec_ns;
		thread->exec_is_known = 1;
		return;
	}
	if (thread->state == STATE_RUN) {
		repair_switch_out(thread, exec_ns, at);
		if (thread->state == STATE_SLEEP)
			end_sleep(thread, STATE_SLEEP, at);
	} else if (is_sleep(thread->state)) {
		count_flaw(thread, DROP_WAKEUP_MISSED);
		if (thread->waking_ns <= thread->since_ns)
			forget_waker(thread);
		end_sleep(thread, thread->state, at);
	}
}

INLINE void keep_offcpu_interval(struct thread *thread, u32 switches, struct cpu *cpu, u32 index, u64 at,
				 struct slice *culprit)
{
	u64 head = thread->offcpu_head, place = head;
	struct offcpu_interval *interval;

	if (head - READ_ONCE(thread->offcpu_tail) >= OFFCPU_SLOTS) {
		count_drop(DROP_OFFCPU_BUFFER_FULL, 1);
		return;
	}
	asm volatile("%0 &= 63" : "+r"(place)); /* OFFCPU_SLOTS - 1 */
	interval = &thread->offcpu[place];
	describe_offcpu(interval, thread, switches, index, at);
	interval->culprit_ns = culprit ? cpu->scan.longest_ns : 0;
	interval->culprit_pid = culprit ? culprit->pid : 0;
	interval->culprit_tid = culprit ? culprit->tid : 0;
	if (culprit)
		__builtin_memcpy(interval->culprit_comm, culprit->comm, COMM_BYTES);
	else
		__builtin_memset(interval->culprit_comm, 0, COMM_BYTES);
	head = __sync_fetch_and_add(&thread->offcpu_head, 1); /* a full barrier: the interval is written before */
	OPAQUE(head);
}

/* The slice that took most of the wait for this CPU that ends at `at`; NULL if it was short or nothing is known. */
INLINE struct slice *longest_slice(struct thread *thread, struct cpu *cpu, u32 index, u64 at)
{
	u64 place;

	if (thread->wait_cpu != index + 1 || at - thread->joined_ns < WAIT_WORTH_A_SEARCH_NS)
		return NULL;
	find_longest_slice(thread->joined_ns, at);
	if (!cpu->scan.longest_ns)
		return NULL;
	place = cpu->scan.longest_slice;
	asm volatile("%0 &= 15" : "+r"(place)); /* SLICES - 1 */
	return &cpu->slices[place];
}

/* Closes the wait of a runnable thread; returns the part of it that a CPU quota caused. */
INLINE u64 end_wait(struct thread *thread, u64 throttled_clock, u64 at)
{
	u64 wait = at - thread->since_ns, throttled = throttled_part(thread, throttled_clock, wait);

	add_clock(thread, STATE_THROTTLED, throttled);
	add_clock(thread, thread->state == STATE_YIELDED ? STATE_YIELDED : STATE_RUNQ, wait - throttled);
	if (thread->wait_cpu)
		leave_waiters(thread, at);
	else if (wait > throttled)
		count_unknown_culprit(wait_slot(thread), wait - throttled);
	return throttled;
}

/* What its task says of a thread as it comes on the CPU. */
struct arrival {
	u64 at_ns;
	u64 exec_ns; /* run time that is booked */
	u64 switches;
	u64 throttled_clock; /* where the wait may have been throttled */
};

/* The thread came on this CPU. Verified once, not for each path that leads here: so without the task. */
GLOBAL int switch_in(struct thread *thread, struct arrival *arrival, struct cpu *cpu)
{
	u32 index = bpf_get_smp_processor_id();
	struct slice *culprit;
	u64 at;

	if (!thread || !arrival || !cpu)
		return 0;
	at = arrival->at_ns;
	step_sequence(thread);
	open_missing_wait(thread, arrival->exec_ns, at);
	culprit = longest_slice(thread, cpu, index, at);
	if (end_wait(thread, arrival->throttled_clock, at) && !throttles_tasks())
		culprit = NULL; /* whatever ran while the whole group was throttled took nothing from this thread */
	thread->state = STATE_RUN;
	thread->since_ns = at;
	thread->last_on_ns = at;
	step_sequence(thread);
	if (culprit)
		raise_culprit(thread, culprit, cpu->scan.longest_ns);
	if (thread->last_off_ns && (!thread->switches || at - thread->last_off_ns >= OFFCPU_MIN_NS))
		keep_offcpu_interval(thread, arrival->switches, cpu, index, at, culprit);
	return 0;
}

/* `task`, whose thread this is, came on this CPU at `at`. */
INLINE void come_on(struct thread *thread, struct task_struct *task, struct cpu *cpu, u64 at)
{
	struct arrival arrival = {
		.at_ns = at,
		.exec_ns = task->se.sum_exec_runtime,
		.switches = switches_of(task),
	};

	if (thread->throttled_at_off_ns != NO_THROTTLED_CLOCK)
		arrival.throttled_clock = throttled_clock(queue_of(task));
	switch_in(thread, &arrival, cpu);
}

/*
 * The thread leaves the CPU, but was not seen to come on: it came on as long ago as it has run, by the kernel's own
 * count. Done before time is attributed on this CPU; otherwise its own run time would count as waiting, permanently.
 */
INLINE void repair_switch_in(struct thread *thread, struct task_struct *task, struct cpu *cpu, u64 now)
{
	u64 ran = run_since_switch_out(thread, task->se.sum_exec_runtime, now - thread->since_ns);

	count_flaw(thread, DROP_SWITCH_IN_MISSED);
	count_drop(DROP_REPAIRED_NS, ran);
	if (thread->wait_cpu == bpf_get_smp_processor_id() + 1)
		charge_nobody(wait_slot(thread), now - ran);
	come_on(thread, task, cpu, now - ran);
}

/* Compares with the kernel's own count of context switches; the first switch-out seen sets the base. */
INLINE void count_switch(struct thread *thread, struct task_struct *task)
{
	u64 switches = task->nvcsw + task->nivcsw, missed;

	if (!thread->switches++)
		thread->switch_base = switches - 1;
	missed = switches - thread->switch_base - thread->switches;
	if (likely(missed == thread->switches_missed))
		return;
	thread->flaws++;
	count_drop(DROP_SWITCH_COUNT_MISMATCH, missed - thread->switches_missed);
	thread->switches_missed = missed;
}

/* The thread has left the CPU for the last time; its times go to the process. */
INLINE void fold_account(struct thread *thread)
{
	u32 slot = thread->process_slot;
	struct process *process = bpf_map_lookup_elem(&processes, &slot);

	if (process) {
		for (int i = 0; i < STATES; i++)
			__sync_fetch_and_add(&process->gone_state_ns[i], thread->clocks.ns[i]);
		__sync_fetch_and_add(&process->gone_switches, thread->switches);
		__sync_fetch_and_add(&process->gone_preemptions, thread->preemptions);
		__sync_fetch_and_add(&process->gone_threads, 1);
	}
	WRITE_ONCE(thread->created_ns, 0); /* a zombie stays in the list of tasks */
}

struct departure {
	u64 now_ns;
	u32 cpu;
	u32 task_state;
	bool is_preempted;
};

NOINLINE int switch_out(struct thread *thread, struct task_struct *task, struct departure *departure)
{
	struct cfs_rq *queue = queue_of(task);
	u64 now = departure->now_ns;
	u8 state;

	step_sequence(thread);
	add_clock(thread, STATE_RUN, now - thread->since_ns);
	thread->exec_at_off_ns = task->se.sum_exec_runtime;
	thread->queue_clock_at_off_ns = queue_clock(queue);
	thread->exec_is_known = 1;
	count_switch(thread, task);
	state = state_at_switch_out(task, departure->is_preempted, departure->task_state);
	thread->state = state;
	thread->since_ns = now;
	if (now - thread->last_on_ns >= GLIMPSE_NS)
		thread->gone_ns = thread->away_ns = now;
	else if (state != STATE_RUNQ)
		thread->gone_ns = now;
	thread->last_off_ns = now;
	thread->last_off_state = state;
	thread->last_futex = state == STATE_SLEEP ? slept_at(task) : 0;
	if (state == STATE_RUNQ)
		thread->preemptions++;
	if (unlikely(thread->marks_steps) && state == STATE_SLEEP)
		note_marker_asleep(thread, now);
	if (!is_sleep(state))
		note_throttled_clock(thread, queue);
	if (state == STATE_RUNQ || state == STATE_YIELDED)
		join_waiters(thread, departure->cpu, now);
	step_sequence(thread);
	if (departure->task_state & TASK_DEAD)
		fold_account(thread);
	return 0;
}

SEC("tp_btf/sched_switch") int sched_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	struct departure departure = {.cpu = bpf_get_smp_processor_id(), .is_preempted = (u8)ctx[0] != 0};
	struct cpu *cpu = cpu_at(departure.cpu);
	struct thread *out, *in;
	u64 now;

	if (!cpu)
		return 0;
	out = tracked(prev);
	in = tracked(next);
	if (!cpu->active_words && !out && !in)
		return 0;
	departure.task_state = passes_task_state ? (u32)ctx[3] : READ_ONCE(prev->__state);
	if (is_dropped() && !(departure.task_state & TASK_DEAD))
		return 0;
	now = bpf_ktime_get_ns();
	departure.now_ns = now;
	if (out && out->state != STATE_RUN && out->state != STATE_INIT)
		repair_switch_in(out, prev, cpu, now);
	if (cpu->active_words) {
		flush_waiters(now);
		add_slice(cpu, prev, now);
	}
	cpu->switched_ns = now;
	if (in)
		come_on(in, next, cpu, now);
	if (out)
		switch_out(out, prev, &departure);
	return 0;
}

/* May come before the switch-out of the sleep it ends, on another CPU: so it only takes notes. */
SEC("tp_btf/sched_waking") int sched_waking(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct thread *thread = tracked(task);

	if (!thread)
		return 0;
	note_waker(thread);
	WRITE_ONCE(thread->waking_ns, bpf_ktime_get_ns());
	return 0;
}

/* The sleep ended at its wake-up; from then on the thread waits for the CPU that it was assigned. */
INLINE int wake_up(struct task_struct *task)
{
	struct thread *thread = tracked(task);
	u8 state;

	if (!thread || is_dropped())
		return 0;
	state = thread->state;
	if (state == STATE_INIT)
		state = is_sleep(thread->hint) ? thread->hint : STATE_SLEEP;
	if (!is_sleep(state))
		return 0; /* woken before it left the CPU */
	step_sequence(thread);
	if (thread->waking_ns <= thread->since_ns)
		thread->waking_ns = thread->since_ns; /* woken while it was leaving: the sleep has no length */
	end_sleep(thread, state, thread->waking_ns);
	note_throttled_clock(thread, queue_of(task));
	join_waiters(thread, cpu_of(task), thread->since_ns);
	step_sequence(thread);
	return 0;
}

SEC("tp_btf/sched_wakeup") int sched_wakeup(u64 *ctx)
{
	return wake_up((void *)ctx[0]);
}

SEC("tp_btf/sched_wakeup_new") int sched_wakeup_new(u64 *ctx)
{
	return wake_up((void *)ctx[0]);
}

/* Splits a wait: from now on it is the other CPU's run queue. The task is still on the old one's. */
SEC("tp_btf/sched_migrate_task") int sched_migrate_task(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct thread *thread = tracked(task);
	u64 now;

	if (!thread)
		return 0;
	if (field_exists(task->se.sched_delayed) && task->se.sched_delayed)
		thread->moves_asleep++;
	if (!thread->wait_cpu)
		return 0;
	now = bpf_ktime_get_ns();
	step_sequence(thread);
	if (!throttles_tasks()) {
		/* the throttled time of the other CPU's queue has nothing to do with this one's */
		u64 wait = now - thread->since_ns, throttled = throttled_part(thread, throttled_clock(queue_of(task)), wait);

		add_clock(thread, STATE_THROTTLED, throttled);
		add_clock(thread, thread->state, wait - throttled);
		thread->since_ns = now;
		thread->throttled_at_off_ns = NO_THROTTLED_CLOCK;
	}
	leave_waiters(thread, now);
	join_waiters(thread, (u32)ctx[1], now);
	step_sequence(thread);
	return 0;
}

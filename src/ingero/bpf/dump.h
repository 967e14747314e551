/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Reports every thread's state to the agent: one struct thread_dump per tracked thread. */
#pragma once
#include "states.h"
#include "throttling.h"

INLINE void add_open_interval(struct thread_dump *dump, u32 state, u64 ns)
{
	u64 index = CLOCK(state);

	asm volatile("%0 &= 7" : "+r"(index)); /* STATES - 1 */
	dump->state_ns[index] += ns;
}

/* One attempt to read thread-state times that another CPU may be changing; false if it did. */
INLINE bool read_clocks(struct thread_dump *dump, struct thread *thread, struct task_struct *task,
			struct signal_struct *signal)
{
	u32 before = __sync_fetch_and_add(&thread->sequence, 0); /* a full barrier */
	u64 since, waking, open, throttled, throttled_at;
	u8 state, hint;

	if (before & 1)
		return false;
	dump->now_ns = bpf_ktime_get_ns();
	__builtin_memcpy(dump->state_ns, thread->clocks.ns, sizeof(dump->state_ns));
	since = READ_ONCE(thread->since_ns);
	waking = READ_ONCE(thread->waking_ns);
	state = READ_ONCE(thread->state);
	hint = READ_ONCE(thread->hint);
	throttled_at = READ_ONCE(thread->throttled_at_off_ns);
	dump->switches = READ_ONCE(thread->switches);
	dump->switch_base = READ_ONCE(thread->switch_base);
	dump->preemptions = READ_ONCE(thread->preemptions);
	dump->flaws = READ_ONCE(thread->flaws);
	dump->voluntary_switches = task->nvcsw;
	dump->involuntary_switches = task->nivcsw;
	dump->sum_exec_ns = task->se.sum_exec_runtime;
	dump->moves_asleep = thread->moves_asleep;
	dump->queued_ns = READ_ONCE(task->sched_info.last_queued);
	dump->run_delay_ns = task->sched_info.run_delay;
	dump->queue_clock_ns = queue_clock_copied(task);
	dump->major_faults = task->maj_flt;
	dump->gone_major_faults = signal->maj_flt;
	if (before != __sync_fetch_and_add(&thread->sequence, 0))
		return false;
	if (dump->queued_ns != READ_ONCE(task->sched_info.last_queued)) /* just booked, after the tracepoint */
		return false;
	dump->state = state;
	if (state == STATE_INIT) {
		state = hint;
		throttled_at = NO_THROTTLED_CLOCK; /* nothing was noted when that began */
	}
	open = dump->now_ns - since;
	if ((s64)open < 0) /* a change stamped with the later time of this CPU's clock */
		return false;
	if (is_sleep(state) && waking > since && waking < dump->now_ns) {
		/* woken, and its wake-up event is still to come */
		add_open_interval(dump, state, waking - since);
		add_open_interval(dump, STATE_RUNQ, dump->now_ns - waking);
		return true;
	}
	if (is_wait(state)) {
		throttled = throttled_so_far(task, throttled_at, open);
		add_open_interval(dump, STATE_THROTTLED, throttled);
		open -= throttled;
	}
	add_open_interval(dump, state, open);
	return true;
}

INLINE void describe_open_call(struct thread_dump *dump, struct thread *thread)
{
	for (int i = 0; i < OPEN_CALLS; i++) {
		struct open_call *call = &thread->calls[i];
		u64 start = READ_ONCE(call->start_ns);

		if (!READ_ONCE(call->sp))
			continue;
		dump->open_calls++;
		if (dump->call_start_ns && dump->call_start_ns <= start)
			continue;
		dump->call_start_ns = start;
		dump->call_caller = call->caller;
		dump->call_sp = call->sp;
		dump->call_handle = call->handle;
		dump->call_function = call->function;
		dump->call_op = call->cookie & 0xff;
	}
}

INLINE void describe_thread(struct thread_dump *dump, struct thread *thread, struct task_struct *task)
{
	dump->created_ns = thread->created_ns;
	dump->pid = task->tgid;
	dump->tid = task->pid;
	dump->waker_tid = thread->waker_tid;
	dump->process_slot = thread->process_slot;
	dump->waker_kind = thread->waker_kind;
	dump->hits = READ_ONCE(thread->hits);
	dump->thread_pointer = THREAD_POINTER(task);
	read_comm(dump->comm, task->comm);
	describe_open_call(dump, thread);
}

SEC("iter/task") int dump_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_dump dump = {.is_unreadable = 1};
	struct seq_file *seq = ctx->meta->seq;
	struct signal_struct *signal;
	struct thread *thread;

	if (!task)
		return 0;
	thread = thread_of(task);
	if (!thread || !thread->created_ns || task->exit_state) /* one that no thread has waited for no longer runs */
		return 0;
	signal = READ_ONCE(task->signal);
	for (int try = 0; try < DUMP_TRIES; try++) {
		if (read_clocks(&dump, thread, task, signal)) {
			dump.is_unreadable = 0;
			break;
		}
	}
	describe_thread(&dump, thread, task);
	empty_offcpu(thread, task);
	bpf_seq_write(seq, &dump, sizeof(dump));
	return 0;
}

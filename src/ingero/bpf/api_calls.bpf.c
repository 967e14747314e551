// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * One generic program for every traced call; the attach cookie says what the call does (ops_gen.h).
 *
 * At entry the thread-state times are noted; their difference at return is the call's breakdown. Only the outermost
 * traced call of a stack is timed: a runtime call that calls the driver is one stall, not two. The inner calls are
 * counted.
 */
#include "call_entry.h"
#include "call_return.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("uprobe")
int call_session(struct pt_regs *context)
{
	return ON_ITS_OWN_STACK(is_at_return(context) ? on_return(context, true) : on_entry(context, false));
}

UPROBE(call_entry, (on_entry(context, false), 0))
UPROBE(call_return, on_return(context, false))

/* Entry only, where returns may not be probed or cost too much: counts and positions, no durations. */
UPROBE(call_count, (on_entry(context, true), 0))

/* Whether other threads of the process continue. Before 5.18 a process with one thread may end without that flag. */
INLINE bool has_survivors(struct task_struct *task)
{
	struct signal_struct *signal = copied(task->signal);

	return copied(signal->live.counter) && !(copied(signal->flags) & SIGNAL_GROUP_EXIT);
}

/* Open calls of a thread that exits or execs are recorded as unfinished. */
INLINE void close_unfinished(struct task_struct *task)
{
	struct thread *thread = thread_of(task);
	struct snapshot at;
	bool is_survived;
	u32 slot;

	if (!thread || !thread->created_ns)
		return;
	is_survived = has_survivors(task);
	slot = thread->process_slot & (MAX_PROCESSES - 1);
	for (int i = 0; i < OPEN_CALLS; i++) {
		struct open_call *call = &thread->calls[i];

		if (!call->sp)
			continue;
		take_snapshot(thread, &at);
		settle_clocks(&at.clocks, &call->clocks);
		thread->python_stack = thread->native_stack = 0;
		write_record(thread, call, &at, 0, CALL_UNFINISHED);
		if (is_survived)
			give_up_call(call, slot);
		call->sp = 0;
	}
	if (is_survived && thread->inner.sp)
		lose_allocation(slot, DROP_ALLOCATIONS_UNPAIRED);
	empty_offcpu(thread, task);
}

SEC("tp_btf/sched_process_exit")
int thread_exits(u64 *ctx)
{
	close_unfinished((struct task_struct *)ctx[0]);
	return 0;
}

/* A new program has not chosen a device and knows no context of the previous one. */
INLINE void begin_image(struct task_struct *task, u32 slot)
{
	struct process *process = bpf_map_lookup_elem(&processes, &slot);
	struct thread *thread = thread_of(task);

	if (process) {
		__sync_fetch_and_add(&process->execs, 1);
		process->program_ns = bpf_ktime_get_ns();
		process->captures = 0;
		forget_memory(slot, process);
		forget_steps(process, slot);
	}
	if (!thread)
		return;
	lose_current(thread);
	thread->inner.sp = 0;
	thread->untouched_ns = bpf_ktime_get_ns();
}

/* A new program image has no streams yet. */
SEC("tp_btf/sched_process_exec")
int process_execs(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	u32 slot = slot_of(task->tgid);
	struct python_layout *layout;

	close_unfinished(task);
	if (slot == NO_SLOT)
		return 0;
	begin_image(task, slot);
	layout = bpf_map_lookup_elem(&python_layouts, &slot);
	if (layout)
		layout->runtime = 0;
	for (int i = 0; i < MAX_STREAMS; i++) {
		struct gpu_stream *gpu_stream = gpu_stream_at(slot, i);

		if (gpu_stream)
			__builtin_memset(gpu_stream, 0, sizeof(*gpu_stream));
	}
	return 0;
}

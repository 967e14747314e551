/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * A sample of the main thread of a process, if it sleeps as a recorded call of another thread returns. Such calls, as
 * autograd's, have no line of the user's: theirs is that of the thread that waits for them. Whether the main thread
 * waited, the end of its sleep tells, and what ended it; nothing is concluded here.
 */
#pragma once
#include "native_stack.h"
#include "sample_records.h"

/* The state of a thread that sleeps outside traced calls, else STATE_INIT. */
INLINE u8 sleeping_outside_calls(struct thread *thread)
{
	for (int i = 0; i < OPEN_CALLS; i++)
		if (READ_ONCE(thread->calls[i].sp))
			return STATE_INIT;
	return sleeping_state(thread);
}

/*
 * Once per sleep and calling thread: the hash of the main thread's Python stack; 0: it has none, does not sleep, or was
 * already sampled.
 */
GLOBAL u64 look_at_main_thread(void)
{
	struct task_struct *main = bpf_get_current_task_btf()->group_leader;
	struct thread *thread = thread_of(bpf_get_current_task_btf()), *sleeper;

	if (!walks_python || !thread || !main || thread->looked_switches == switches_of(main))
		return 0;
	thread->looked_switches = switches_of(main);
	sleeper = thread_of(main);
	if (!sleeper || sleeping_outside_calls(sleeper) == STATE_INIT || READ_ONCE(main->on_cpu))
		return 0;
	return capture_python(sleeper, main, thread->process_slot & (MAX_PROCESSES - 1), true);
}

/*
 * Reports what that sample found. It counts only if the main thread cannot have run meanwhile: it was on no CPU before
 * and is on none, and has not been switched.
 */
GLOBAL int tell_of_main_thread(u64 python_stack)
{
	struct task_struct *main = bpf_get_current_task_btf()->group_leader;
	struct thread *thread = thread_of(bpf_get_current_task_btf());
	u32 slot;

	if (!thread || !main || READ_ONCE(main->on_cpu) || thread->looked_switches != switches_of(main))
		return 0;
	slot = thread->process_slot & (MAX_PROCESSES - 1);
	send_sample(main, slot, bpf_ktime_get_ns(), python_stack, 0, 0, STATE_SLEEP);
	return 0;
}

/* Two functions, as the stacks of nested ones may take 512 bytes together before Linux 6.13. */
INLINE void note_main_thread(void)
{
	u64 python_stack = look_at_main_thread();

	if (python_stack)
		tell_of_main_thread(python_stack);
}

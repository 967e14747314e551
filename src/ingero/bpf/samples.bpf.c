// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Where the threads of traced processes are outside traced calls: those that run, at each tick of every CPU's sampling
 * clock; those that go to sleep, as they do so; and, on demand, those that are sleeping.
 *
 * A tick is an interrupt: it may come in the middle of another program of the same thread. So the walk's memory
 * (`python_walks`) belongs to this object alone; all other shared data is changed in one step, or by helpers that lock.
 * The scheduler lets no tick in.
 */
#include "native_stack.h"
#include "sample_records.h"
#include "sleep_looks.h"
#include "states.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define PLACE(pc) ((pc) >> 4) /* functions begin at multiples of 16 bytes: a place is never in two */
/* Copies are 20 KB, and the agent takes a millisecond or more for each: this many at once, then one per period. */
#define COPIES_AT_ONCE 64
#define PYTHON_COPY_NS 1000000000ULL /* beside a Python stack, which tells most */
#define NATIVE_COPY_NS 250000000ULL  /* where it is all there is */

#if defined(__TARGET_ARCH_x86)
#define PROGRAM_COUNTER(context) ((context)->ip)
#else
#define PROGRAM_COUNTER(context) ((context)->pc)
#endif

/* when the copy after those made so far would be due, if all came evenly */
u64 python_copy_due_ns = 0;
u64 native_copy_due_ns = 0;

INLINE bool may_copy(u64 *due_ns, u64 period_ns, u64 now)
{
	u64 due = READ_ONCE(*due_ns);

	if (due > now)
		return false;
	if (due + COPIES_AT_ONCE * period_ns < now)
		due = now - COPIES_AT_ONCE * period_ns;
	WRITE_ONCE(*due_ns, due + period_ns); /* two CPUs at once may make one more */
	return true;
}

/* Of a thread that is not tracked yet, or no longer, nothing is known. */
INLINE struct thread *tracked(struct task_struct *task)
{
	struct thread *thread;

	if (field_exists(task->bpf_storage) && !task->bpf_storage)
		return NULL;
	thread = thread_of(task);
	return thread && thread->created_ns ? thread : NULL;
}

/* Whether a traced call is open: not one that an exception has left, whose entry is below the stack pointer. */
INLINE bool is_in_call(struct thread *thread, u64 sp)
{
	for (int i = 0; i < OPEN_CALLS; i++) {
		u64 entry = READ_ONCE(thread->calls[i].sp);

		if (entry && sp <= entry)
			return true;
	}
	return false;
}

/* The layout of the interpreter whose own code runs; NULL: the code of another library, or no interpreter. */
INLINE struct python_layout *running_interpreter(u32 slot, u64 pc)
{
	struct python_layout *layout = bpf_map_lookup_elem(&python_layouts, &slot);

	return layout && pc >= layout->text_begin && pc < layout->text_end ? layout : NULL;
}

/*
 * Only the thread that collects runs the interpreter's own code meanwhile: the others wait for the lock that it holds,
 * or run code of other libraries.
 */
INLINE bool is_collecting(struct thread *thread, struct python_layout *layout)
{
	u64 interpreter;
	u32 collecting = 0;

	if (!layout->interpreter_collecting)
		return false;
	interpreter = user_word(thread->python_thread + layout->thread_interpreter);
	bpf_probe_read_user(&collecting, sizeof(collecting), (void *)(interpreter + layout->interpreter_collecting));
	return collecting;
}

/* A copy for each place that was not copied before, as long as there are not too many. */
INLINE u64 sampled_native(struct thread *thread, struct task_struct *task, u32 slot, struct pt_regs *context,
			  u64 python_stack, u64 now)
{
	u64 place = PLACE(PROGRAM_COUNTER(context)), *due_ns = python_stack ? &python_copy_due_ns : &native_copy_due_ns;
	bool is_decided = false;
	u64 key = decided_key(thread, task, context, python_stack, place, &is_decided);

	if (is_known(key, NATIVE_STACK, task->tgid))
		return is_decided ? key : key | NATIVE_MAYBE_OTHER;
	if (!may_copy(due_ns, python_stack ? PYTHON_COPY_NS : NATIVE_COPY_NS, now)) {
		if (!python_stack)
			count_drop(DROP_SAMPLE_STACK_NOT_COPIED, 1);
		return 0;
	}
	return capture_native(thread, task, slot, python_stack, place, true);
}

GLOBAL int sample_thread(u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *context = (struct pt_regs *)bpf_task_pt_regs(task);
	struct thread *thread = tracked(task);
	u64 python_stack, native_stack;
	struct python_layout *interpreter;
	u32 slot;

	if (!thread || are_stacks_off() || is_in_call(thread, STACK_POINTER(context)))
		return 0;
	slot = thread->process_slot & (MAX_PROCESSES - 1);
	python_stack = capture_python(thread, task, slot, true);
	interpreter = python_stack ? running_interpreter(slot, PROGRAM_COUNTER(context)) : NULL;
	native_stack = interpreter ? NATIVE_IN_INTERPRETER :
				     sampled_native(thread, task, slot, context, python_stack, now);
	send_sample(task, slot, now, python_stack, native_stack,
		    interpreter && is_collecting(thread, interpreter) ? SAMPLE_COLLECTING : 0, STATE_RUN);
	return 0;
}

SEC("perf_event") int sample_running(void *ctx)
{
	if (tracked(bpf_get_current_task_btf()))
		sample_thread(bpf_ktime_get_ns());
	return 0;
}

/*
 * With a run queue locked, like the scheduler programs: nothing is allocated here. What is not in a ring yet is sent
 * here, because that takes only the ring's own lock, and no lock of the scheduler is taken under it.
 */
GLOBAL int look_at_sleeper(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *context = (struct pt_regs *)bpf_task_pt_regs(task);
	struct thread *thread = tracked(task);

	if (!thread || are_stacks_off() || is_in_call(thread, STACK_POINTER(context)))
		return 0;
	if (!bpf_task_storage_get(&python_walks, task, NULL, 0)) {
		thread->sleep.is_wanted = 1;
		return 0;
	}
	note_sleep(&thread->sleep, switches_of(task),
		   capture_python(thread, task, thread->process_slot & (MAX_PROCESSES - 1), false));
	return 0;
}

SEC("tp_btf/sched_switch") int note_sleeper(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[1];
	bool is_preempted = (u8)ctx[0] != 0;
	struct thread *thread = walks_python && !is_preempted ? tracked(task) : NULL;
	u64 now;

	if (!thread || is_runnable(task) || !has_python(thread))
		return 0;
	now = bpf_ktime_get_ns();
	if (is_turn(&thread->sleep, now, thread->hits || task->pid == task->tgid ? OFTEN_LOOKED_AT : SELDOM_LOOKED_AT))
		look_at_sleeper();
	return 0;
}

/* A thread that sleeps in a Python program gets the memory that walking its sleeps takes. */
INLINE void give_walk(struct thread *thread, struct task_struct *task)
{
	if (!walks_python || !thread->sleep.is_wanted)
		return;
	thread->sleep.is_wanted = 0;
	if (!bpf_task_storage_get(&python_walks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE))
		count_drop(DROP_THREAD_STORAGE_FAILED, 1);
}

SEC("iter/task") int find_parked(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct parked_thread parked = {};
	struct pt_regs *context;
	struct thread *thread;

	if (!task)
		return 0;
	thread = tracked(task);
	if (!thread || task->exit_state)
		return 0;
	give_walk(thread, task);
	parked.switches = task->nvcsw + task->nivcsw; /* before the state: one that it leaves afterwards shows */
	parked.state = sleeping_state(thread);
	if (parked.state == STATE_INIT)
		return 0;
	context = (struct pt_regs *)bpf_task_pt_regs(task);
	if (!context || is_in_call(thread, STACK_POINTER(context)))
		return 0;
	parked.now_ns = bpf_ktime_get_ns();
	parked.thread_pointer = THREAD_POINTER(task);
	parked.hits = READ_ONCE(thread->hits);
	parked.pid = task->tgid;
	parked.tid = task->pid;
	parked.process_slot = thread->process_slot;
	parked.is_looked_at = stack_of_sleep(&thread->sleep, parked.switches, &parked.python_stack);
	read_comm(parked.comm, task->comm);
	bpf_seq_write(ctx->meta->seq, &parked, sizeof(parked));
	return 0;
}

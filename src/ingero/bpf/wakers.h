/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * What woke a thread: another thread only if the wake-up happens in its own context, else the purpose of the interrupt.
 *
 * The preempt count tells whether this is an interrupt; markers that six tracepoints leave per CPU tell which kind.
 */
#pragma once
#include "cpus.h"

/*
 * Offset of the per-CPU preempt count (x86; where it is part of pcpu_hot, of that) from the per-CPU run queue, found by
 * the agent in the kernel's BTF: per-CPU symbols cannot be named here without CONFIG_KALLSYMS_ALL. 0 = unknown.
 */
const volatile s64 preempt_count_offset = 0;

#define IN_HARDIRQ 0xff0000 /* of the preempt count: hard interrupts and NMI */
#define IN_SOFTIRQ 0x100    /* a softirq is being served; 0x200 only says that they are off */
#define PREEMPT_DEPTH 0xff

enum softirq_vector { /* linux/interrupt.h */
	SOFTIRQ_TIMER = 1,
	SOFTIRQ_NET_TX,
	SOFTIRQ_NET_RX,
	SOFTIRQ_BLOCK,
	SOFTIRQ_IRQ_POLL, /* block devices */
	SOFTIRQ_HRTIMER = 8,
};

INLINE u32 preempt_count(struct task_struct *current)
{
	u32 count = 0;
	u64 offset = preempt_count_offset;

	if (field_exists(current->thread_info.preempt_count))
		return (u32)current->thread_info.preempt_count;
	if (!preempt_count_offset || !field_exists(current->se.cfs_rq))
		return 0;
	if (field_exists(((struct pcpu_hot *)0)->preempt_count))
		offset += byte_offset(((struct pcpu_hot *)0)->preempt_count);
	bpf_probe_read_kernel(&count, sizeof(count), (void *)current->se.cfs_rq->rq + offset);
	return count;
}

INLINE bool is_send(long number)
{
	return number == SYS_WRITE || number == SYS_WRITEV || number == SYS_SENDTO || number == SYS_SENDMSG ||
	       number == SYS_SENDMMSG;
}

/*
 * On the loopback device the receiver's softirq runs inside the sender's own system call; a thread that was blocked in a
 * send is woken inside that of the receiver, which has made room.
 */
INLINE bool is_moving_data(struct task_struct *current, struct thread *woken)
{
	u64 slept_at = woken->last_futex;
	struct pt_regs *registers;
	long number;

	if (current->flags & PF_KTHREAD)
		return false;
	registers = (struct pt_regs *)bpf_task_pt_regs(current);
	if (!registers)
		return false;
	number = SYSCALL_NUMBER(registers);
	if (number == SYS_READ || number == SYS_RECVFROM || number == SYS_RECVMSG)
		return slept_at >= OTHER_CALL(0) && slept_at < LOWEST_FUTEX && is_send((long)slept_at / 2 - 1);
	return is_send(number);
}

INLINE u8 thread_kind(struct task_struct *current)
{
	if (!current->pid)
		return WAKER_INTERRUPT; /* the idle loop running another CPU's request */
	return current->flags & PF_WQ_WORKER ? WAKER_KWORKER : WAKER_THREAD;
}

INLINE u8 softirq_kind(struct task_struct *current, struct cpu *cpu, struct thread *woken)
{
	u8 vector = cpu->softirq - 1;

	if (vector == SOFTIRQ_NET_RX && cpu->is_own_softirq && is_moving_data(current, woken))
		return WAKER_THREAD;
	if (vector == SOFTIRQ_NET_RX || vector == SOFTIRQ_NET_TX)
		return WAKER_NETWORK;
	if (vector == SOFTIRQ_BLOCK || vector == SOFTIRQ_IRQ_POLL)
		return WAKER_BLOCK;
	return vector == SOFTIRQ_TIMER || vector == SOFTIRQ_HRTIMER ? WAKER_TIMER : WAKER_INTERRUPT;
}

/* Notes what wakes `thread` now. */
INLINE void note_waker(struct thread *thread)
{
	struct task_struct *current = bpf_get_current_task_btf();
	u32 count = preempt_count(current);
	struct cpu *cpu = this_cpu();
	u8 kind;

	if (!cpu)
		return;
	if (count & IN_HARDIRQ)
		kind = cpu->hardirq ? cpu->hardirq : WAKER_INTERRUPT;
	else if (count & IN_SOFTIRQ)
		kind = cpu->softirq ? softirq_kind(current, cpu, thread) : WAKER_INTERRUPT;
	else
		kind = thread_kind(current);
	if (kind == WAKER_INTERRUPT && thread->state == STATE_IO)
		kind = WAKER_BLOCK; /* a device that completes in its interrupt handler */
	thread->waker_kind = kind;
	thread->waker_pid = kind == WAKER_THREAD || kind == WAKER_KWORKER ? current->tgid : 0;
	thread->waker_tid = kind == WAKER_THREAD || kind == WAKER_KWORKER ? current->pid : 0;
}

INLINE int mark_hardirq(u8 value)
{
	struct cpu *cpu = this_cpu();

	if (cpu)
		cpu->hardirq = value;
	return 0;
}

/*
 * A task that re-enables softirqs keeps preemption off meanwhile; an interrupt that finds preemption off is rare, so
 * packets of a network card are hardly ever attributed to a task that happens to be sending.
 */
SEC("tp_btf/softirq_entry") int softirq_entry(u64 *ctx)
{
	u32 vector = ctx[0];
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return 0;
	cpu->softirq = vector + 1;
	if (vector == SOFTIRQ_NET_RX)
		cpu->is_own_softirq = (preempt_count(bpf_get_current_task_btf()) & PREEMPT_DEPTH) != 0;
	return 0;
}

SEC("tp_btf/softirq_exit") int softirq_exit(u64 *ctx)
{
	struct cpu *cpu = this_cpu();

	(void)ctx;
	if (cpu)
		cpu->softirq = 0;
	return 0;
}

SEC("tp_btf/irq_handler_entry") int irq_handler_entry(u64 *ctx)
{
	(void)ctx;
	return mark_hardirq(WAKER_INTERRUPT);
}

SEC("tp_btf/irq_handler_exit") int irq_handler_exit(u64 *ctx)
{
	(void)ctx;
	return mark_hardirq(0);
}

SEC("tp_btf/hrtimer_expire_entry") int hrtimer_expire_entry(u64 *ctx)
{
	(void)ctx;
	return mark_hardirq(WAKER_TIMER);
}

SEC("tp_btf/hrtimer_expire_exit") int hrtimer_expire_exit(u64 *ctx)
{
	(void)ctx;
	return mark_hardirq(0);
}

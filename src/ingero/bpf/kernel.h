/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * The kernel as these programs see it: the few structures and fields they read (relocated by BTF when loaded), the BPF
 * helpers by their numbers (uapi/linux/bpf.h), and libbpf's conventions for sections and maps.
 */
#pragma once
#include "events.h"

typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define KFUNC __attribute__((section(".ksyms"), weak))
#define NOINLINE static __attribute__((noinline))
/*
 * A function that the verifier checks once, for any arguments, instead of once per path that leads to it; numbers only
 */
#define GLOBAL __attribute__((noinline))

#define MAP_UINT(name, value) int(*name)[value]
#define MAP_TYPE(name, type) typeof(type) *name
#define MAP SEC(".maps")

#define barrier() asm volatile("" ::: "memory")
#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
/* keeps a value in one register that the verifier must track */
#define OPAQUE(x) asm volatile("" : "+r"(x))

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_STACK = 23,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_F_NO_PREALLOC = 1, BPF_F_MMAPABLE = 1024 };
enum { BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };
enum { BPF_RB_NO_WAKEUP = 1, BPF_RB_FORCE_WAKEUP = 2 };
enum { BPF_RB_AVAIL_DATA = 0, BPF_RB_RING_SIZE = 1 };

struct task_struct;
struct bpf_map;

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*bpf_get_prandom_u32)(void) = (void *)7;
static u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static u64 (*bpf_get_current_uid_gid)(void) = (void *)15; /* the user id in the low half */
static long (*bpf_get_current_comm)(void *buffer, u32 size) = (void *)16;
static long (*bpf_map_push_elem)(void *map, const void *value, u64 flags) = (void *)87;
static long (*bpf_map_pop_elem)(void *map, void *value) = (void *)88;
static long (*bpf_probe_read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*bpf_probe_read_kernel_str)(void *to, u32 size, const void *from) = (void *)115;
static long (*bpf_seq_write)(void *seq, const void *data, u32 size) = (void *)127;
static long (*bpf_ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
/*
 * A record is compared with NULL once, or twice with nothing in between, which clang merges into one check. At a second
 * check the verifier of 6.1 treats a record that is not NULL as one that may be: there it would never be submitted.
 */
static void *(*bpf_ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;
static void (*bpf_ringbuf_discard)(void *data, u64 flags) = (void *)133;
static long (*bpf_probe_read_user_str)(void *to, u32 size, const void *from) = (void *)114;
static u64 (*bpf_ringbuf_query)(void *ring, u64 flags) = (void *)134;
static void *(*bpf_task_storage_get)(void *map, struct task_struct *task, void *value, u64 flags) = (void *)156;
static struct task_struct *(*bpf_get_current_task_btf)(void) = (void *)158;
static u64 (*bpf_get_func_ip)(void *ctx) = (void *)173; /* of a uprobe: where it sits */
static u64 (*bpf_get_attach_cookie)(void *ctx) = (void *)174;
static long (*bpf_task_pt_regs)(struct task_struct *task) = (void *)175;
static long (*bpf_loop)(u32 count, void *step, void *context, u64 flags) = (void *)181;

extern void bpf_preempt_disable(void) KFUNC; /* 6.10 */
extern void bpf_preempt_enable(void) KFUNC;

#define RELOCATED __attribute__((preserve_access_index))
#define field_exists(field) __builtin_preserve_field_info(field, 2 /* BPF_FIELD_EXISTS */)
/* no parentheses around `value`: clang 14 wants the enumerator itself there */
#define enum_value(type, value) __builtin_preserve_enum_value(*(typeof(type) *)value, 1 /* BPF_ENUMVAL_VALUE */)
#define enum_exists(type, value) __builtin_preserve_enum_value(*(typeof(type) *)value, 0 /* BPF_ENUMVAL_EXISTS */)

/* Value of a bit field: the verifier refuses a plain load of one. */
#define read_bitfield(source, field)                                                                                   \
	({                                                                                                             \
		u64 bits = 0;                                                                                          \
		bpf_probe_read_kernel(&bits, __builtin_preserve_field_info((source)->field, 1 /* byte size */),        \
				      (void *)(source) +                                                              \
					      __builtin_preserve_field_info((source)->field, 0 /* byte offset */));    \
		bits <<= __builtin_preserve_field_info((source)->field, 4 /* left shift of a u64 */);                  \
		bits >> __builtin_preserve_field_info((source)->field, 5 /* right shift of a u64 */);                  \
	})
/*
 * A field behind a pointer, through a helper: 5 to 10 ns, but the verifier, which for each other load of a pointer of a
 * structure it trusts searches the names of all kernel types (1 to 2 ms), does not follow it. For what runs seldom.
 */
#define copied(source)                                                                                                 \
	({                                                                                                             \
		typeof(source) value_ = 0;                                                                             \
		bpf_probe_read_kernel(&value_, sizeof(value_), &(source));                                             \
		value_;                                                                                                \
	})

/* A task's name, padded: before 5.17 the bytes after the first NUL are left over from a longer name. */
INLINE void read_comm(char *to, const char *comm)
{
	__builtin_memset(to, 0, COMM_BYTES);
	bpf_probe_read_kernel_str(to, COMM_BYTES, comm);
}

#define byte_offset(field) __builtin_preserve_field_info(field, 0 /* BPF_FIELD_BYTE_OFFSET */)

struct rq {
	u64 clock;
	u64 clock_task; /* without interrupts and steal time, where the kernel accounts for them */
	u64 clock_pelt;
	u64 lost_idle_time;
} RELOCATED;

struct cfs_rq {
	struct rq *rq;
	int throttle_count;
	u64 throttled_clock_self;
	u64 throttled_clock_self_time;
	u64 throttled_clock_pelt;
	u64 throttled_clock_pelt_time;
	u64 throttled_clock_task; /* 5.15 */
	u64 throttled_clock_task_time;
} RELOCATED;

struct sched_entity {
	u64 sum_exec_runtime;
	unsigned char sched_delayed;
	struct cfs_rq *cfs_rq;
} RELOCATED;

struct sched_info {
	unsigned long long last_arrival; /* on a CPU, by the run queue's clock */
	unsigned long long last_queued;	 /* 0: it does not wait for a CPU */
	unsigned long long run_delay;	 /* of waits that have ended */
} RELOCATED;

struct thread_info {
	u32 cpu;
	u64 preempt_count; /* arm64 */
} RELOCATED;

/* x86 6.2 - 6.14: per-CPU variables that are used together */
struct pcpu_hot {
	int preempt_count;
} RELOCATED;

struct bpf_local_storage;

struct kernfs_node {
	u64 id;
} RELOCATED;

struct cgroup_root;

struct cgroup {
	struct cgroup_root *root;
	struct kernfs_node *kn;
	int level;
} RELOCATED;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
} RELOCATED;

enum cgroup_subsys_id { memory_cgrp_id = 4 };

struct css_set {
	struct cgroup_subsys_state *subsys[16];
	struct cgroup *dfl_cgrp;
} RELOCATED;

struct atomic {
	int counter;
} RELOCATED;

struct xol_area {
	unsigned long vaddr;
} RELOCATED;

struct uprobes_state {
	struct xol_area *xol_area;
} RELOCATED;

struct mm_struct {
	struct uprobes_state uprobes_state;
} RELOCATED;

#if defined(__TARGET_ARCH_x86)
struct thread_struct {
	unsigned long fsbase;
} RELOCATED;
#define THREAD_POINTER(task) ((task)->thread.fsbase)
#elif defined(__TARGET_ARCH_arm64)
struct thread_uw {
	unsigned long tp_value;
} RELOCATED;
struct thread_struct {
	struct thread_uw uw;
} RELOCATED;
#define THREAD_POINTER(task) ((task)->thread.uw.tp_value)
#endif

#define SIGNAL_GROUP_EXIT 4 /* all threads end */
struct signal_struct {
	struct { int counter; } live;
	unsigned int flags;
	unsigned long maj_flt; /* of threads that have ended */
} RELOCATED;

struct task_struct {
	struct thread_info thread_info;
	unsigned int cpu; /* before 5.16, when it moved to thread_info */
	unsigned int __state;
	unsigned int flags;
	int on_cpu;
	int on_rq;
	struct sched_entity se;
	struct sched_info sched_info;
	int exit_state;
	int exit_code;
	unsigned long jobctl;
	unsigned in_iowait : 1;
	int pid;
	int tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	unsigned long nvcsw;
	unsigned long nivcsw;
	unsigned long maj_flt;
	u64 start_boottime;
	char comm[16];
	struct signal_struct *signal;
	struct css_set *cgroups;
	struct mm_struct *mm;
	bool throttled;
	struct thread_struct thread;
	struct bpf_local_storage *bpf_storage; /* NULL: no program keeps anything for this task */
} RELOCATED;

struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
} RELOCATED;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} RELOCATED;

#define TASK_STOPPED_OR_TRACED 0xc /* __TASK_STOPPED | __TASK_TRACED */
#define TASK_UNINTERRUPTIBLE 0x2
#define TASK_DEAD 0x80
#define TASK_FROZEN 0x8000
#define PF_WQ_WORKER 0x20
#define PF_KTHREAD 0x200000
#define JOBCTL_TRAP_FREEZE (1ul << 23) /* in the v2 cgroup freezer's trap, or on the way to it */
#define PF_KTHREAD 0x200000

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#define REGISTER_ARGS 6
#define SYSCALL_NUMBER(regs) ((long)(regs)->orig_ax)
#define SYSCALL_FIRST(regs) ((u64)(regs)->di)
#define SYSCALL_SECOND(regs) ((u64)(regs)->si)
#define SYS_SCHED_YIELD 24
#define SYS_FUTEX 202
#define SYS_WRITE 1
#define SYS_WRITEV 20
#define SYS_READ 0
#define SYS_RECVFROM 45
#define SYS_RECVMSG 47
#define SYS_SENDTO 44
#define SYS_SENDMSG 46
#define SYS_SENDMMSG 307
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	unsigned long regs[31], sp, pc, pstate;
	u64 orig_x0;
	s32 syscallno;
};
#define REGISTER_ARGS 8
#define SYSCALL_NUMBER(regs) ((long)(regs)->syscallno)
#define SYSCALL_FIRST(regs) ((regs)->orig_x0)
#define SYSCALL_SECOND(regs) ((u64)(regs)->regs[1])
#define SYS_SCHED_YIELD 124
#define SYS_FUTEX 98
#define SYS_WRITE 64
#define SYS_WRITEV 66
#define SYS_READ 63
#define SYS_RECVFROM 207
#define SYS_RECVMSG 212
#define SYS_SENDTO 206
#define SYS_SENDMSG 211
#define SYS_SENDMMSG 269
#else
#error "unknown target architecture"
#endif

/* task_struct.__state was `state` before 5.14, which is below the oldest kernel supported */

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Block I/O: from the moment a request is passed to the device until the device is done, and which thread issued it.
 *
 * The tracepoints have had these arguments since 5.11: (request), and (request, status, bytes) at completion.
 *
 * The issuing thread is read at block_rq_insert if the request goes through an I/O scheduler, because a kernel worker
 * may dispatch it later (2-12% of a deep queue on a virtio disk); without a scheduler the submitter itself issues it.
 * Writeback, journals, and cache flushes are issued by kernel threads (flagged): the process that dirtied the pages is
 * not known here.
 *
 * Major faults have no tracepoint of their own. exceptions:page_fault_user would cost each of the many minor faults of
 * every process 6% (+90 ns on 1.4 us; bench/host_events_cost.py) to find the few major ones by the growth of maj_flt,
 * and older arm64 kernels lack it; mm_filemap_fault (6.10) covers neither swap nor the end. So the exact count is
 * maj_flt in the task iterator, and the cause is found here at no cost: a read issued while the thread is inside an
 * exception (no system call number) is the read of a major fault, with its duration.
 *
 * Cost of the three programs together: about 1 us of CPU per request.
 */
#include "host_events.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Requests of other processes are recorded from this duration on. */
const volatile u64 block_slow_ns = 10 * 1000 * 1000;
/* When tracing began: older requests were issued unseen and do not count as dropped. */
const volatile u64 tracing_since_ns = 0;

struct gendisk {
	int major;
	int first_minor;
} RELOCATED;

struct request_queue {
	struct gendisk *disk;
} RELOCATED;

struct request {
	struct request_queue *q;
	u32 cmd_flags;
	u32 __data_len;
	u64 __sector;
	u64 start_time_ns;
} RELOCATED;

/* enum req_op; the upper bits of cmd_flags are flags */
#define OPERATION_MASK 0xff
#define OPERATION_FLUSH 2
#define OPERATION_DISCARD 3
#define OPERATION_SECURE_ERASE 5
#define OPERATION_WRITE_ZEROES 9
#define OPERATION_PASSTHROUGH 32 /* from here on: device commands that move no data of the block layer */

#define MINOR_BITS 20

struct pending {
	u64 allocated_ns; /* distinguishes a request from the next one at the same address */
	u64 issued_ns;	  /* 0: queued only */
	u64 queue_ns;
	u64 sector;
	u64 cgroup_id;
	u32 size_bytes;
	u32 pid;
	u32 tid;
	u16 process_slot;
	u8 kind;
	u8 flags;
	char comm[COMM_BYTES];
};

/*
 * By request address. An entry stays until the request completes; one that is merged into another stays until its
 * address is reused. Requests are preallocated by the drivers (256 per queue is common), so the table holds 32 such
 * queues; what does not fit is counted when it completes.
 */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(max_entries, 8192);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, struct pending);
} block_pending MAP;

INLINE u8 kind_of(u32 operation)
{
	switch (operation) {
	case OPERATION_FLUSH:
		return HOST_BLOCK_FLUSH;
	case OPERATION_DISCARD:
	case OPERATION_SECURE_ERASE:
	case OPERATION_WRITE_ZEROES:
		return HOST_BLOCK_DISCARD;
	}
	return operation & 1 ? HOST_BLOCK_WRITE : HOST_BLOCK_READ;
}

INLINE void set_issuer(struct pending *pending)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	u32 slot = slot_of(task->tgid);

	pending->pid = task->tgid;
	pending->tid = task->pid;
	pending->process_slot = slot == NO_SLOT ? NO_TARGET : slot;
	pending->cgroup_id = cgroup_id_of(task);
	bpf_get_current_comm(pending->comm, COMM_BYTES);
	if (task->flags & PF_KTHREAD)
		pending->flags = HOST_ISSUER_IS_KTHREAD;
	else if (pending->kind == HOST_BLOCK_READ && SYSCALL_NUMBER(regs) == -1)
		pending->flags = HOST_IN_PAGE_FAULT;
}

INLINE bool is_passthrough(struct request *request)
{
	return (request->cmd_flags & OPERATION_MASK) >= OPERATION_PASSTHROUGH;
}

/* The request's entry, if it belongs to this request and not to an earlier one. */
INLINE struct pending *pending_of(struct request *request, u64 key)
{
	struct pending *pending = bpf_map_lookup_elem(&block_pending, &key);

	return pending && pending->allocated_ns == request->start_time_ns ? pending : NULL;
}

INLINE void add_pending(struct request *request, u64 key, u64 issued_ns)
{
	struct pending pending = {};

	pending.kind = kind_of(request->cmd_flags & OPERATION_MASK);
	pending.allocated_ns = request->start_time_ns;
	pending.issued_ns = issued_ns;
	pending.size_bytes = request->__data_len;
	pending.sector = request->__sector;
	/* start_time_ns is 0 on devices with iostats=0 */
	if (issued_ns && pending.allocated_ns && issued_ns > pending.allocated_ns)
		pending.queue_ns = issued_ns - pending.allocated_ns;
	set_issuer(&pending);
	bpf_map_update_elem(&block_pending, &key, &pending, BPF_ANY);
}

SEC("tp_btf/block_rq_insert")
int block_insert(u64 *ctx)
{
	struct request *request = (struct request *)ctx[0];
	u64 key = ctx[0];

	/* a request that the device refused comes here again, from a kernel worker */
	if (!is_passthrough(request) && !pending_of(request, key))
		add_pending(request, key, 0);
	return 0;
}

SEC("tp_btf/block_rq_issue")
int block_issue(u64 *ctx)
{
	struct request *request = (struct request *)ctx[0];
	u64 key = ctx[0], now = bpf_ktime_get_ns();
	struct pending *pending;

	if (is_passthrough(request))
		return 0;
	pending = pending_of(request, key);
	if (!pending) {
		add_pending(request, key, now);
		return 0;
	}
	pending->issued_ns = now;
	pending->size_bytes = request->__data_len; /* others may have been merged into it since */
	pending->sector = request->__sector;
	if (pending->allocated_ns && now > pending->allocated_ns)
		pending->queue_ns = now - pending->allocated_ns;
	return 0;
}

INLINE void record_completion(struct request *request, struct pending *pending, u64 duration_ns)
{
	struct host_record *record = reserve_host(pending->kind);
	struct gendisk *disk;

	if (!record)
		return;
	disk = request->q->disk;
	record->device = (u32)disk->major << MINOR_BITS | (u32)disk->first_minor;
	record->start_ns = pending->issued_ns;
	record->duration_ns = duration_ns;
	record->size_bytes = pending->size_bytes;
	record->cgroup_id = pending->cgroup_id;
	record->arg0 = pending->sector;
	record->arg1 = pending->queue_ns;
	record->pid = pending->pid;
	record->tid = pending->tid;
	record->process_slot = pending->process_slot;
	record->flags = pending->flags;
	__builtin_memcpy(record->comm, pending->comm, COMM_BYTES);
	submit_host(record);
}

INLINE void count_unmatched(struct request *request)
{
	u64 allocated_ns = request->start_time_ns;

	/* a flush without data is completed by the block layer's own flush request; it never reaches the device */
	if (request->__data_len && !(allocated_ns && allocated_ns < tracing_since_ns))
		count_drop(DROP_BLOCK_IO_UNMATCHED, 1);
}

SEC("tp_btf/block_rq_complete")
int block_complete(u64 *ctx)
{
	struct request *request = (struct request *)ctx[0];
	u64 key = ctx[0], now = bpf_ktime_get_ns();
	u32 done_bytes = ctx[2];
	struct pending *pending;
	u64 duration_ns;
	bool is_traced;

	if (is_passthrough(request) || done_bytes < request->__data_len) /* the rest completes later */
		return 0;
	pending = pending_of(request, key);
	if (!pending || !pending->issued_ns) {
		count_unmatched(request);
		return 0;
	}
	duration_ns = now - pending->issued_ns;
	is_traced = pending->process_slot != NO_TARGET;
	count_host(pending->kind, is_traced, 1, pending->size_bytes, duration_ns);
	if (is_traced || duration_ns >= block_slow_ns) {
		record_completion(request, pending, duration_ns);
	} else if (pending->queue_ns + duration_ns >= block_slow_ns && !(bpf_get_prandom_u32() % HOST_MANY)) {
		pending->flags |= HOST_ONE_OF_MANY; /* a full queue has thousands a second */
		record_completion(request, pending, duration_ns);
	}
	bpf_map_delete_elem(&block_pending, &key);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * TCP retransmits of the host, and the bytes that traced processes send and receive on sockets of any family.
 *
 * Bytes come from sock_send_length and sock_recv_length (6.3): they fire once per call with the number moved, also for
 * read, write, splice, and io_uring; a send and a receive together cost untraced processes 0.2 us, a traced one 0.4.
 * The time inside the calls is not recorded: its start is visible to raw_syscalls only, which puts every system call of
 * every process on the slow path (0.11 -> 0.24 us for getppid, and twice the cost of the bytes for a send and a
 * receive; bench/host_events_cost.py). A receive that blocks shows in the thread's own state, as sleep that the network
 * ended.
 *
 * A socket's first record comes with its first call, then at most one a second, with the bytes and calls since; the
 * sums in `processes` and `host_totals` are exact.
 */
#include "host_events.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile u64 socket_record_interval_ns = 1000 * 1000 * 1000;

#define AF_INET 2
#define AF_INET6 10
#define MSG_PEEK 2
#define TCP_SYN_SENT 2
#define TCP_CLOSE 7

struct in6_addr {
	u8 bytes[16];
};

struct sock_common {
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	u16 skc_dport; /* network byte order; skc_num is in the host's */
	u16 skc_num;
	u16 skc_family;
	u8 skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} RELOCATED;

struct mem_cgroup {
	struct cgroup_subsys_state css;
} RELOCATED;

struct sock_cgroup_data {
	struct cgroup *cgroup;
} RELOCATED;

struct sock {
	struct sock_common __sk_common;
	struct mem_cgroup *sk_memcg;
	struct sock_cgroup_data sk_cgrp_data;
} RELOCATED;

/* a connection that is not established yet: its addresses are in the same place */
struct request_sock {
	struct sock_common __req_common;
} RELOCATED;

struct sk_buff {
	u32 len;
	char cb[48];
} RELOCATED;

struct tcp_skb_cb {
	u16 tcp_gso_segs;
} RELOCATED;

struct trace_event_raw_tcp_retransmit_skb {
	int err; /* newer kernels; before, only successful ones are reported */
} RELOCATED;

enum direction { SENT, RECEIVED, DIRECTIONS };

struct moved {
	u64 recorded_ns; /* 0: never */
	u64 size_bytes;	 /* since then */
	u64 calls;
};

struct socket_owner {
	struct moved moved[DIRECTIONS];
	u64 cgroup_id;
	u32 pid;
	u32 tid;
	u32 slot;
	u32 pad;
	char comm[COMM_BYTES];
};

/*
 * By socket address: those that traced processes used last, and the thread that used each first. The oldest are
 * evicted.
 */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 8192);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, struct socket_owner);
} socket_owners MAP;

INLINE void set_addresses(struct host_record *record, struct sock_common *socket)
{
	record->arg0 = (u64)socket->skc_num << 16 | __builtin_bswap16(socket->skc_dport);
	if (socket->skc_family == AF_INET6) {
		bpf_probe_read_kernel(record->address, 16, &socket->skc_v6_rcv_saddr);
		bpf_probe_read_kernel(record->address + 16, 16, &socket->skc_v6_daddr);
		return;
	}
	*(u32 *)(record->address + 8) = 0xffff0000; /* ::ffff: */
	*(u32 *)(record->address + 12) = socket->skc_rcv_saddr;
	*(u32 *)(record->address + 24) = 0xffff0000;
	*(u32 *)(record->address + 28) = socket->skc_daddr;
}

/* The v2 cgroup that created the socket; where that is the root, the memory cgroup that is charged for it, if any. */
INLINE u64 cgroup_id_of_socket(struct sock *socket)
{
	struct cgroup *cgroup = NULL;

	if (field_exists(((struct sock *)0)->sk_cgrp_data.cgroup))
		cgroup = socket->sk_cgrp_data.cgroup;
	if (field_exists(((struct sock *)0)->sk_memcg) && (!cgroup || !cgroup->level) && socket->sk_memcg)
		cgroup = socket->sk_memcg->css.cgroup;
	return cgroup ? cgroup->kn->id : 0;
}

/* Retransmits of all processes are recorded; the process is known only if a traced one has used the socket. */
INLINE void record_retransmit(struct sock *socket, struct sock_common *ends, u32 size_bytes, u32 segments)
{
	u64 key = (u64)socket;
	struct socket_owner *owner = bpf_map_lookup_elem(&socket_owners, &key);
	struct host_record *record;

	count_host(HOST_TCP_RETRANSMIT, owner, segments, size_bytes, 0);
	record = reserve_host(HOST_TCP_RETRANSMIT);
	if (!record)
		return;
	record->start_ns = bpf_ktime_get_ns();
	record->size_bytes = size_bytes;
	record->arg1 = ends->skc_state | (u64)segments << 16;
	set_addresses(record, ends);
	if (owner) {
		record->pid = owner->pid;
		record->tid = owner->tid;
		record->process_slot = owner->slot;
		record->cgroup_id = owner->cgroup_id;
		__builtin_memcpy(record->comm, owner->comm, COMM_BYTES);
	} else {
		record->cgroup_id = cgroup_id_of_socket(socket);
	}
	submit_host(record);
}

SEC("tp_btf/tcp_retransmit_skb")
int tcp_retransmit(u64 *ctx)
{
	struct sock *socket = (struct sock *)ctx[0];
	struct sk_buff *buffer = (struct sk_buff *)ctx[1];
	struct tcp_skb_cb *control = (struct tcp_skb_cb *)buffer->cb;
	u16 segments = 1;

	if (field_exists(((struct trace_event_raw_tcp_retransmit_skb *)0)->err) && (s32)ctx[2])
		return 0; /* could not be sent */
	bpf_probe_read_kernel(&segments, sizeof(segments), &control->tcp_gso_segs);
	record_retransmit(socket, &socket->__sk_common, buffer->len, segments);
	return 0;
}

SEC("tp_btf/tcp_retransmit_synack")
int tcp_retransmit_synack(u64 *ctx)
{
	struct request_sock *request = (struct request_sock *)ctx[1];

	record_retransmit((struct sock *)ctx[0], &request->__req_common, 0, 1);
	return 0;
}

INLINE void set_owner(u64 key, u32 slot, u64 flags)
{
	struct socket_owner owner = { .slot = slot };
	u64 id = bpf_get_current_pid_tgid();

	owner.pid = id >> 32;
	owner.tid = (u32)id;
	owner.cgroup_id = cgroup_id_copied(bpf_get_current_task_btf());
	bpf_get_current_comm(owner.comm, COMM_BYTES);
	bpf_map_update_elem(&socket_owners, &key, &owner, flags);
}

/*
 * A connecting socket is known before its first packet can be lost; the lengths come when a call has returned, which
 * for a large send is long after. A closed one is forgotten, because its address will be reused.
 */
SEC("tp_btf/inet_sock_set_state")
int socket_state(u64 *ctx)
{
	u64 key = ctx[0];
	u32 state = ctx[2], slot;

	if (state == TCP_CLOSE) {
		bpf_map_delete_elem(&socket_owners, &key);
	} else if (state == TCP_SYN_SENT) {
		slot = slot_of(bpf_get_current_pid_tgid() >> 32);
		if (slot != NO_SLOT)
			set_owner(key, slot, BPF_ANY);
	}
	return 0;
}

INLINE struct socket_owner *owner_of(u64 key, u32 slot)
{
	struct socket_owner *owner = bpf_map_lookup_elem(&socket_owners, &key);

	if (owner)
		return owner;
	set_owner(key, slot, BPF_NOEXIST);
	return bpf_map_lookup_elem(&socket_owners, &key);
}

INLINE void record_moved(struct sock *socket, u32 slot, u8 kind, struct moved *moved)
{
	u64 now = bpf_ktime_get_ns(), last = READ_ONCE(moved->recorded_ns);
	struct host_record *record;
	u16 family = socket->__sk_common.skc_family;

	if (last && now - last < socket_record_interval_ns)
		return;
	if (__sync_val_compare_and_swap(&moved->recorded_ns, last, now) != last)
		return;
	record = reserve_host(kind);
	if (!record)
		return;
	record->start_ns = now;
	record->size_bytes = __sync_lock_test_and_set(&moved->size_bytes, 0);
	record->arg1 = family | __sync_lock_test_and_set(&moved->calls, 0) << 16;
	if (family == AF_INET || family == AF_INET6)
		set_addresses(record, &socket->__sk_common);
	set_current(record, slot);
	submit_host(record);
}

INLINE void count_process(struct process *process, enum direction direction, u64 size_bytes)
{
	if (direction == SENT) {
		__sync_fetch_and_add(&process->net_sends, 1);
		__sync_fetch_and_add(&process->net_sent_bytes, size_bytes);
	} else {
		__sync_fetch_and_add(&process->net_receives, 1);
		__sync_fetch_and_add(&process->net_received_bytes, size_bytes);
	}
}

INLINE int count_moved(struct sock *socket, s32 size_bytes, enum direction direction)
{
	u8 kind = direction == SENT ? HOST_NET_SEND : HOST_NET_RECEIVE;
	u32 slot = slot_of(bpf_get_current_pid_tgid() >> 32);
	struct socket_owner *owner;
	struct process *process;

	if (likely(slot == NO_SLOT) || size_bytes <= 0)
		return 0;
	process = bpf_map_lookup_elem(&processes, &slot);
	if (process)
		count_process(process, direction, size_bytes);
	count_host(kind, true, 1, size_bytes, 0);
	owner = owner_of((u64)socket, slot);
	if (!owner)
		return 0;
	__sync_fetch_and_add(&owner->moved[direction].size_bytes, size_bytes);
	__sync_fetch_and_add(&owner->moved[direction].calls, 1);
	record_moved(socket, slot, kind, &owner->moved[direction]);
	return 0;
}

SEC("tp_btf/sock_send_length")
int socket_send(u64 *ctx)
{
	return count_moved((struct sock *)ctx[0], ctx[1], SENT);
}

SEC("tp_btf/sock_recv_length")
int socket_receive(u64 *ctx)
{
	if ((u32)ctx[2] & MSG_PEEK) /* will be received again */
		return 0;
	return count_moved((struct sock *)ctx[0], ctx[1], RECEIVED);
}

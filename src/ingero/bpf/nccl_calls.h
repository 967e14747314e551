/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* What the generic call program adds for an NCCL call: bytes, position in the communicator's sequence, group. */
#pragma once
#include "arguments.h"
#include "clocks.h"
#include "communicators.h"

/* `extra` of a call on a communicator */
#define NCCL_REDUCE_OP_SHIFT 8 /* ncclRedOp_t + 1, 0: none; 255: 254 or above */
#define NCCL_ROOT_SHIFT 16     /* root or peer + 1, 0: none */
#define NCCL_GROUP_SHIFT 40    /* which group of its thread, 0: none */
#define NCCL_IN_PROGRESS 7     /* ncclResult_t: accepted, and not blocking */

/*
 * Sends to and receives from one peer: communicator << 40 | operation << 32 | peer -> how many. Each takes 40 bytes;
 * all-to-all among 64 ranks needs 128 per communicator.
 */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(max_entries, 16384);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, u64);
} peers MAP;

INLINE u64 next_of_peer(u32 number, u32 op, u32 peer)
{
	u64 key = (u64)number << 40 | (u64)op << 32 | peer, zero = 0;
	u64 *count = bpf_map_lookup_elem(&peers, &key);

	if (!count) {
		bpf_map_update_elem(&peers, &key, &zero, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&peers, &key);
	}
	if (count)
		return __sync_fetch_and_add(count, 1) + 1;
	count_drop(DROP_COMMUNICATORS_FULL, 1);
	return 0;
}

/* The running group of a thread, counted from 1; 0: none. `nccl_group` holds groups begun << 8 | depth. */
INLINE u64 group_of_call(struct thread *thread, u32 flags)
{
	u32 depth = thread->nccl_group & 0xff, group;

	if (flags & FLAG_GROUP_BEGIN)
		thread->nccl_group += depth ? 1 : 0x101;
	group = thread->nccl_group >> 8;
	if (flags & FLAG_GROUP_END && depth)
		thread->nccl_group--;
	return depth || flags & FLAG_GROUP_BEGIN ? group : 0;
}

INLINE u64 typed_extra(const struct arguments *arguments, u64 cookie)
{
	u64 extra = (u32)argument(arguments, COOKIE_EXTRA(cookie)) & 0xff;
	u32 reduce_op = argument(arguments, COOKIE_TIMES(cookie)), root = argument(arguments, COOKIE_FUNCTION(cookie));

	if (COOKIE_TIMES(cookie))
		extra |= (u64)(reduce_op < 254 ? reduce_op + 1 : 255) << NCCL_REDUCE_OP_SHIFT;
	if (COOKIE_FUNCTION(cookie))
		extra |= (u64)((root + 1) & 0xffffff) << NCCL_ROOT_SHIFT;
	return extra;
}

/* Counts a collective and keeps what it is: that of ranks that hang is seldom among the recorded ones. */
INLINE u64 next_collective(struct communicator *found, const struct open_call *call)
{
	found->last_ns = call->start_ns;
	found->last_tid = bpf_get_current_pid_tgid();
	found->last_op = COOKIE_OP(call->cookie);
	found->last_bytes = call->size_bytes;
	found->last_extra = call->extra;
	return __sync_fetch_and_add(&found->collectives, 1) + 1;
}

/* `function` becomes communicator << COMMUNICATOR_SEQUENCE_BITS | position in its sequence. */
static __attribute__((noinline)) int note_nccl(struct open_call *call, struct thread *thread,
					       const struct arguments *arguments, u32 slot)
{
	u32 flags = COOKIE_FLAGS(call->cookie);
	struct communicator *found;
	u64 sequence = 0;

	call->function = 0;
	call->extra = flags & FLAG_TYPED ? typed_extra(arguments, call->cookie) : 0;
	call->extra |= group_of_call(thread, flags) << NCCL_GROUP_SHIFT;
	found = call->handle ? communicator_of(slot, call->handle) : NULL;
	if (!found)
		return 0;
	if (flags & FLAG_PEER_TO_PEER)
		sequence = next_of_peer(found->number, COOKIE_OP(call->cookie),
					argument(arguments, COOKIE_FUNCTION(call->cookie)));
	else if (flags & FLAG_TYPED)
		sequence = next_collective(found, call);
	if (!found->is_whole)
		sequence = 0; /* how many came before is not known */
	call->function = (u64)found->number << COMMUNICATOR_SEQUENCE_BITS |
			 (sequence & ((1ULL << COMMUNICATOR_SEQUENCE_BITS) - 1));
	return 0;
}

/* A call that NCCL has refused does not advance the sequence. */
INLINE void undo_nccl(struct open_call *call, u32 slot, s32 ret)
{
	u32 flags = COOKIE_FLAGS(call->cookie);
	struct communicator *found;

	if (!ret || ret == NCCL_IN_PROGRESS || !(flags & FLAG_TYPED) || flags & FLAG_PEER_TO_PEER)
		return;
	found = known_communicator(slot, call->handle);
	if (found && found->number == call->function >> COMMUNICATOR_SEQUENCE_BITS) {
		__sync_fetch_and_add(&found->collectives, -1);
		found->last_ns = 0;
	}
	call->function &= ~((1ULL << COMMUNICATOR_SEQUENCE_BITS) - 1);
}

/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Asynchronous copies that wait. With pageable host memory, a copy from the GPU returns when its bytes have arrived,
 * and one to the GPU first waits for its stream, then copies the bytes, unless they are few: those are staged at once.
 * With pinned memory neither waits (CUDA Driver API, "API synchronization behavior"). If the kind of memory is not
 * known, the duration of the call itself decides at its return.
 */
#pragma once
#include "host_memory.h"
#include "gpu_streams.h"

#define COPY_KIND_TO_DEVICE 1 /* cudaMemcpyKind */
#define COPY_KIND_TO_HOST 2
#define COPY_KIND_DEFAULT 4
/* This many bytes to the GPU are staged at once: on an H200 2 MiB do not wait for their stream, 3 MiB do. */
#define STAGED_BYTES 2097152
#define HOST_BYTES_PER_NS 32 /* no thread copies its memory faster: what was quicker did not copy it */
#define STAGING_BYTES_PER_NS 1 /* nor slower, while it runs; 5 to 17 on an H200 */
/* A copy that only enqueues takes 3 to 10 us, of pinned memory on an H100 up to 160 us; loss.item() there 18 to 66. */
#define WAITED_NS 250000
#define QUEUE_BLOCKED_NS 20000 /* a launch that waits for room takes longer; others 2 to 8 us */

/* Whether one end may be host memory: then the row of ops.py says where its pointers are. */
INLINE bool may_touch_host(u64 cookie)
{
	return COOKIE_KIND(cookie) & KIND_COPY && (COOKIE_HANDLE(cookie) || COOKIE_FUNCTION(cookie));
}

INLINE u32 way_of_copy(const struct open_call *call)
{
	u32 to = COOKIE_HANDLE(call->cookie), from = COOKIE_FUNCTION(call->cookie);

	if (COOKIE_EXTRA(call->cookie) && call->extra != COPY_KIND_DEFAULT)
		return call->extra == COPY_KIND_TO_DEVICE ? WAY_TO_DEVICE :
		       call->extra == COPY_KIND_TO_HOST	  ? WAY_TO_HOST :
							    WAY_OTHER;
	return to && from ? WAY_UNKNOWN : to ? WAY_TO_HOST : WAY_TO_DEVICE;
}

/*
 * The entry of a copy: in which direction its bytes go, what is known of the host memory, and what it will have waited
 * for if it waits. The pointers are not needed after that; `handle` becomes the kind of memory.
 */
GLOBAL int begin_copy(struct open_call *call, u32 slot)
{
	struct process *process;
	struct gpu_stream *gpu_stream;
	u64 to, from;

	if (!call)
		return 0;
	slot &= MAX_PROCESSES - 1;
	to = call->handle;
	from = call->function;
	call->handle = HOST_MEMORY_UNKNOWN;
	call->function = 0;
	call->way = way_of_copy(call);
	if (call->way == WAY_OTHER)
		return 0;
	if (call->way != WAY_UNKNOWN)
		call->handle = host_memory_at(slot, call->way == WAY_TO_HOST ? to : from);
	else if (host_memory_at(slot, to) == HOST_MEMORY_PINNED || host_memory_at(slot, from) == HOST_MEMORY_PINNED)
		call->handle = HOST_MEMORY_PINNED;
	process = bpf_map_lookup_elem(&processes, &slot);
	if (COOKIE_KIND(call->cookie) & KIND_SYNC || call->handle == HOST_MEMORY_PINNED || call->stream_slot < 0 ||
	    !process || READ_ONCE(process->captures) > 0)
		return 0;
	gpu_stream = gpu_stream_at(slot, call->stream_slot);
	if (!gpu_stream)
		return 0;
	cover_stream(call, gpu_stream, call->way == WAY_TO_HOST);
	call->waits = WAITS_PERHAPS;
	return 0;
}

/* Whether the thread's launches wait for room in the full queue, or may do so: then its copy has done that too. */
INLINE bool is_queue_full(const struct thread *thread, const struct open_call *call, u32 slot)
{
	return (!thread->last_launch_ns || thread->last_launch_ns > QUEUE_BLOCKED_NS) &&
	       may_be_full(slot, call->stream_slot);
}

/*
 * What an enqueue currently takes, judged by launches on the call's stream or the first one with launches; 0: not
 * known.
 */
INLINE u64 enqueue_cost(const struct open_call *call, u32 slot)
{
	const struct gpu_stream *gpu_stream = gpu_stream_at(slot, call->stream_slot);
	int other;

	if (gpu_stream && !gpu_stream->times.cost_ns) {
		other = launching_stream(slot);
		gpu_stream = other < 0 ? NULL : gpu_stream_at(slot, other);
	}
	return !gpu_stream ? 0 : gpu_stream->times.cost_with_room_ns ?: gpu_stream->times.cost_ns;
}

/* Whether the call itself took so long that it has waited for the GPU, not for a CPU, a page, or another thread. */
INLINE bool has_waited(const struct thread *thread, const struct open_call *call, const struct snapshot *at, u32 slot)
{
	u64 own_ns = at->now_ns - call->start_ns;
	bool has_slept = at->clocks.ns[CLOCK(STATE_SLEEP)] != call->clocks.ns[CLOCK(STATE_SLEEP)];

	for (int i = CLOCK(STATE_RUN) + 1; i < STATES; i++)
		if (i != CLOCK(STATE_SLEEP) && i != CLOCK(STATE_YIELDED))
			own_ns -= at->clocks.ns[i] - call->clocks.ns[i];
	if (call->way != WAY_TO_HOST && call->size_bytes <= STAGED_BYTES)
		own_ns -= call->size_bytes / STAGING_BYTES_PER_NS;
	if ((s64)own_ns <= WAITED_NS || (has_slept && thread->woken_kind == WAKER_THREAD))
		return false;
	return own_ns > 2 * enqueue_cost(call, slot) && !is_queue_full(thread, call, slot);
}

/* Whether a copy of pageable memory to the GPU was one that waits for its stream first. */
INLINE bool has_staged(const struct open_call *call, const struct snapshot *at)
{
	return call->size_bytes > STAGED_BYTES &&
	       at->now_ns - call->start_ns > call->size_bytes / HOST_BYTES_PER_NS;
}

/* A copy whose stream was known to be done at its entry: the time that it ran is what copying takes. */
INLINE void note_copying(const struct open_call *call, const struct snapshot *at, u32 slot)
{
	struct gpu_stream *gpu_stream = gpu_stream_at(slot, call->stream_slot);
	u64 ran_ns = at->clocks.ns[CLOCK(STATE_RUN)] - call->clocks.ns[CLOCK(STATE_RUN)], covered, took;

	if (!gpu_stream || call->stream_slot < 0 || call->way == WAY_TO_HOST || !has_staged(call, at))
		return;
	covered = call->covered[call->stream_slot & (MAX_STREAMS - 1)];
	if (!covered || READ_ONCE(gpu_stream->waited) < covered ||
	    at->clocks.ns[CLOCK(STATE_SLEEP)] != call->clocks.ns[CLOCK(STATE_SLEEP)])
		return;
	took = (ran_ns << 20) / call->size_bytes;
	if (took && (!gpu_stream->copy_ns_per_mib || took < gpu_stream->copy_ns_per_mib))
		gpu_stream->copy_ns_per_mib = took;
}

/*
 * The return of an asynchronous copy that may have waited: what it actually waited for. One that is staged at once
 * waits for the last but one before it, if at all; how far the stream was then is not known.
 */
GLOBAL int judge_copy(struct thread *thread, struct open_call *call, struct snapshot *at, u32 slot)
{
	bool is_known, is_certain;

	if (!thread || !call || !at)
		return 0;
	slot &= MAX_PROCESSES - 1;
	note_copying(call, at, slot);
	is_known = call->handle == HOST_MEMORY_PAGEABLE;
	is_certain = is_known && (call->way == WAY_TO_HOST || has_staged(call, at));
	call->waits = WAITS_NOT;
	if (!is_certain && !has_waited(thread, call, at, slot))
		return 0;
	if (!is_known)
		call->handle = HOST_MEMORY_SEEMS_PAGEABLE;
	if (call->way == WAY_TO_HOST)
		call->waits = WAITS_ALL;
	else
		call->waits = call->size_bytes > STAGED_BYTES ? WAITS_BEFORE : WAITS_OLDER;
	return 0;
}

/* What the exact sums know of a copy besides its bytes. */
INLINE void add_copy(struct cell *cell, const struct open_call *call, u64 duration)
{
	u64 bytes = summed_bytes(call->size_bytes);

	if (call->way == WAY_TO_DEVICE)
		__sync_fetch_and_add(&cell->host_to_gpu_bytes, bytes);
	else if (call->way == WAY_TO_HOST)
		__sync_fetch_and_add(&cell->gpu_to_host_bytes, bytes);
	if (call->waits && !(COOKIE_KIND(call->cookie) & KIND_SYNC))
		__sync_fetch_and_add(&cell->blocked_ns, duration);
}

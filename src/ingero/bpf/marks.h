/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Progress marks: what a call that waited for the GPU has shown of how far a stream is. Even if a stream is never seen
 * done, they show that it has not run dry in between.
 */
#pragma once
#include "gpu_streams.h"

#define MARK_GAP_NS 2000000 /* between two marks of a stream: a full queue has one each 0.25 ms */

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 18); /* (agent) */
} marks MAP;

/* A call has waited for the GPU for this long, until it returned. `place`: slot << 8 | enum blocked_kind. */
GLOBAL int note_mark(struct open_call *call, struct snapshot *at, u32 place, u64 waited_ns)
{
	struct mark_record *mark;
	struct gpu_stream *gpu_stream;
	u32 index, kind = place & 0xff;

	if (!call || !at || call->stream_slot < 0)
		return 0;
	index = call->stream_slot & (MAX_STREAMS - 1);
	gpu_stream = gpu_stream_at(place >> 8, index);
	if (!gpu_stream)
		return 0;
	__sync_fetch_and_add(&gpu_stream->waited_ns, waited_ns);
	if (at->now_ns - READ_ONCE(gpu_stream->mark_ns) < MARK_GAP_NS)
		return 0;
	gpu_stream->mark_ns = at->now_ns;
	waited_ns = READ_ONCE(gpu_stream->waited_ns);
	__sync_fetch_and_add(&gpu_stream->waited_ns, -waited_ns);
	mark = bpf_ringbuf_reserve(&marks, sizeof(*mark), 0);
	if (!mark) {
		count_drop(DROP_MARKS_RING_FULL, 1);
		return 0;
	}
	mark->time_ns = at->now_ns;
	mark->waited_ns = waited_ns;
	mark->queued = READ_ONCE(gpu_stream->begin);
	mark->position = kind == BLOCKED_LAUNCH ? 0 : call->covered[index];
	mark->outstanding = mark->queued - READ_ONCE(gpu_stream->waited);
	mark->stream = gpu_stream->key;
	mark->pid = bpf_get_current_pid_tgid() >> 32;
	mark->device = (s32)gpu_stream->device - 1;
	mark->process_slot = place >> 8;
	mark->kind = kind;
	bpf_ringbuf_submit(mark, BPF_RB_NO_WAKEUP);
	return 0;
}

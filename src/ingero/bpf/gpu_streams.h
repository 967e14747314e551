/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Streams: what is enqueued on each stream of a process, and what syncs have covered. A sync that completes the
 * stream's work ends a sync interval.
 *
 * Positions of a stream count its enqueues: `begin` the calls entered, `end` the calls finished, `waited` what a
 * completed sync has covered. A sync covers only enqueues finished before it began; it completes the stream's work if
 * none has begun since: begin == waited. Order between streams is kept as vector clocks: covers[j] of stream i is the
 * position of stream j that the tail of i follows. State shared by threads is lock-free, because uprobe programs may
 * take no lock.
 */
#pragma once
#include "cells.h"
#include "clocks.h"
#include "launch_times.h"
#include "ops_gen.h"
#include "settings.h"

/* Two syncs this close together have no step between them: a loop that launches anything takes longer. */
#define UNSEEN_MIN_NS 50000

/* The first 64 bytes are what each launch needs. */
struct gpu_stream {
	u64 key; /* 0: free */
	u64 begin;
	u64 end;
	u64 base; /* position at which the current sync interval began */
	u64 launches;
	u64 launches_base;
	u64 step; /* launches between two checkpoints */
	u32 device; /* 1 + ordinal; 0: not known */
	u32 is_first_unknown;
	u64 op_set[OP_SET_WORDS];
	u64 size_bytes;
	u64 size_base;
	u64 graph;
	u64 waited;
	u64 close_ns; /* return of the previous sync */
	u64 first_ns; /* first enqueue */
	u64 close_flaws;
	u64 first_flaws;
	u32 close_tid;
	u32 first_tid;
	u64 mark_ns; /* the last mark (marks.h), and for how long calls have waited for the stream since */
	u64 waited_ns;
	struct launch_times times;
	u64 copy_ns_per_mib; /* of the fastest pageable copy to the GPU that had nothing to wait for; 0: none */
	u64 pad;
	u64 checkpoint_ns[CHECKPOINTS];
	struct clocks close_clocks; /* of the thread that synced */
	struct clocks first_clocks; /* of the thread that enqueued first */
	u64 covers[MAX_STREAMS];
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, MAX_PROCESSES *MAX_STREAMS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct gpu_stream);
} gpu_streams MAP;

struct position {
	u64 covers[MAX_STREAMS];
	u64 image; /* image_of the program that recorded it: its slot and the handle are reused */
	u32 gpu_stream;
	u32 pad;
};

/*
 * recorded CUDA events by (process slot << SLOT_SHIFT | handle); a reused handle is harmless, because positions of a
 * program only grow
 */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 16384);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, struct position);
} positions MAP;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct position);
} no_position MAP; /* zeroes: the initial value of a position, too large for the stack */

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} sync_intervals MAP;

/*
 * A queue holds 1,022 operations; with several streams or graphs fewer. The most seen outstanding: 1,022, 1,012, 957.
 */
#define FULL_QUEUE_OPERATIONS 900

INLINE struct gpu_stream *gpu_stream_at(u32 slot, u32 index)
{
	u32 key = (slot & (MAX_PROCESSES - 1)) * MAX_STREAMS + (index & (MAX_STREAMS - 1));

	return bpf_map_lookup_elem(&gpu_streams, &key);
}

/* The default streams are distinguished by device, the per-thread ones by thread as well. */
#define LEGACY_STREAM 1
#define PER_THREAD_STREAM 2
INLINE u64 gpu_stream_key(u64 stream, u32 flags, s32 device, u32 tid)
{
	u64 place = 1ULL << 55 | (u64)((device < 0 ? 0 : device) & 0x7f) << 56;

	if (stream == PER_THREAD_STREAM || (stream == 0 && flags & FLAG_PER_THREAD_STREAM))
		return place | (u64)tid << 8 | PER_THREAD_STREAM;
	if (stream == 0 || stream == LEGACY_STREAM)
		return place | LEGACY_STREAM;
	return stream;
}

/* The stream with this key, claiming a free place, and its index; NULL and -1 if all are taken. */
INLINE struct gpu_stream *find_gpu_stream(u32 slot, u64 key, s32 device, int *index)
{
	*index = -1;
	for (int i = 0; i < MAX_STREAMS; i++) {
		struct gpu_stream *gpu_stream = gpu_stream_at(slot, i);

		if (!gpu_stream)
			return NULL;
		if (likely(claim(&gpu_stream->key, key))) {
			if (device >= 0 && unlikely(gpu_stream->device != 1 + (u32)device))
				gpu_stream->device = 1 + device;
			*index = i;
			return gpu_stream;
		}
	}
	count_drop(DROP_STREAMS_FULL, 1);
	return NULL;
}

/* Whether so much was enqueued since the stream was last seen done that a launch may have to wait for room. */
INLINE bool may_be_full(u32 slot, s32 index)
{
	struct gpu_stream *gpu_stream = index >= 0 ? gpu_stream_at(slot, index) : NULL;

	return gpu_stream && READ_ONCE(gpu_stream->begin) - READ_ONCE(gpu_stream->waited) >= FULL_QUEUE_OPERATIONS;
}

GLOBAL int end_lesson(struct gpu_stream *gpu_stream, u64 now)
{
	if (gpu_stream)
		learn_launch_cost(&gpu_stream->times, READ_ONCE(gpu_stream->launches), now);
	return 0;
}

/*
 * An enqueue has returned: the duration of launches is learned. Threads that race for a stream lose one launch of a
 * lesson.
 */
INLINE void note_enqueued(u32 slot, const struct open_call *call, u64 now, u64 duration)
{
	struct gpu_stream *gpu_stream = call->stream_slot >= 0 ? gpu_stream_at(slot, call->stream_slot) : NULL;
	bool is_short;
	u64 waited;

	if (unlikely(!gpu_stream))
		return;
	if (unlikely(!(COOKIE_KIND(call->cookie) & KIND_LAUNCH))) {
		/* a pause is the host's time between launches, without copies in it */
		gpu_stream->times.returned_ns += duration;
		return;
	}
	waited = READ_ONCE(gpu_stream->waited);
	is_short = waited && READ_ONCE(gpu_stream->begin) - waited < FULL_QUEUE_OPERATIONS;
	if (unlikely(note_launch_time(&gpu_stream->times, READ_ONCE(gpu_stream->launches), call->start_ns, duration, is_short)))
		end_lesson(gpu_stream, now);
	gpu_stream->times.returned_ns = now;
}

/* An enqueue begins: position, step type, checkpoints. Returns whether it is the first of its sync interval. */
INLINE bool begin_enqueue(struct gpu_stream *gpu_stream, u64 cookie, u64 size_bytes, u64 graph)
{
	u64 position = __sync_fetch_and_add(&gpu_stream->begin, 1);
	u32 op = COOKIE_OP(cookie);
	u64 bit = 1ULL << (op & 63), *word = &gpu_stream->op_set[op >> 6 & (OP_SET_WORDS - 1)];

	if (COOKIE_KIND(cookie) & KIND_LAUNCH) {
		u64 nth = __sync_fetch_and_add(&gpu_stream->launches, 1) - READ_ONCE(gpu_stream->launches_base);
		u64 step = READ_ONCE(gpu_stream->step);

		if (step && nth % step == 0 && nth / step < CHECKPOINTS)
			gpu_stream->checkpoint_ns[nth / step & (CHECKPOINTS - 1)] = bpf_ktime_get_ns();
		if (graph)
			gpu_stream->graph = graph;
	}
	if (size_bytes)
		__sync_fetch_and_add(&gpu_stream->size_bytes, summed_bytes(size_bytes));
	if (!(READ_ONCE(*word) & bit))
		*word |= bit;
	return position == READ_ONCE(gpu_stream->base);
}

INLINE void note_first_enqueue(struct gpu_stream *gpu_stream, u32 tid, const struct open_call *call)
{
	gpu_stream->first_ns = call->start_ns;
	gpu_stream->first_tid = tid;
	gpu_stream->first_clocks = call->clocks;
	gpu_stream->first_flaws = call->flaws;
	gpu_stream->is_first_unknown = 0;
}

/* However it was left: an enqueue that stayed open would keep every later sync from completing its stream. */
INLINE void end_enqueue(const struct open_call *call, u32 slot)
{
	struct gpu_stream *gpu_stream;

	if (unlikely(!(COOKIE_KIND(call->cookie) & KIND_ENQUEUE) || call->stream_slot < 0))
		return;
	gpu_stream = gpu_stream_at(slot, call->stream_slot);
	if (gpu_stream)
		__sync_fetch_and_add(&gpu_stream->end, 1);
}

INLINE u64 position_key(u32 slot, u64 event)
{
	return (u64)slot << SLOT_SHIFT | (event & ((1ULL << SLOT_SHIFT) - 1));
}

/* What an event of the running program stands for; NULL: it has not been recorded. */
INLINE struct position *position_of(u32 slot, u64 event)
{
	u64 key = position_key(slot, event);
	struct position *position = bpf_map_lookup_elem(&positions, &key);
	struct process *process = bpf_map_lookup_elem(&processes, &slot);

	return position && process && position->image == image_of(process) ? position : NULL;
}

/* cudaEventRecord: the event stands for the stream's tail and everything that the tail follows. */
GLOBAL int record_event(u32 slot, u64 event, u32 index)
{
	u64 key = position_key(slot, event);
	struct position *position = bpf_map_lookup_elem(&positions, &key);
	struct process *process = bpf_map_lookup_elem(&processes, &slot);
	struct gpu_stream *gpu_stream = gpu_stream_at(slot, index);

	if (!position) {
		u32 zero = 0;
		void *initial = bpf_map_lookup_elem(&no_position, &zero);

		if (initial)
			bpf_map_update_elem(&positions, &key, initial, BPF_ANY);
		position = bpf_map_lookup_elem(&positions, &key);
	}
	if (!position || !process || !gpu_stream)
		return 0;
	position->image = image_of(process);
	for (int i = 0; i < MAX_STREAMS; i++)
		position->covers[i] = gpu_stream->covers[i];
	position->covers[index & (MAX_STREAMS - 1)] = READ_ONCE(gpu_stream->end);
	position->gpu_stream = index;
	return 0;
}

/* cudaStreamWaitEvent: the stream's tail follows what the event stands for. */
GLOBAL int wait_event(u32 slot, u64 event, u32 index)
{
	struct position *position = position_of(slot, event);
	struct gpu_stream *gpu_stream = gpu_stream_at(slot, index);

	if (!position) {
		count_drop(DROP_EVENT_POSITION_UNKNOWN, 1);
		return 0;
	}
	if (!gpu_stream)
		return 0;
	for (u32 i = 0; i < MAX_STREAMS; i++)
		if (i != index)
			raise_to(&gpu_stream->covers[i], position->covers[i]);
	return 0;
}

/* Work and syncs whose device is not known are assumed to be on device 0, most often the only one. */
INLINE bool is_on_device(const struct gpu_stream *gpu_stream, s32 device)
{
	s32 place = gpu_stream->device ? (s32)gpu_stream->device - 1 : 0;

	return place == (device < 0 ? 0 : device);
}

/* Whether enqueues are missing here because tracing them costs too much. */
INLINE bool are_enqueues_unseen(void)
{
	u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);

	return set && set->are_enqueues_unseen;
}

/* The first stream that was seen to launch; -1 if none was: everything was launched before tracing began. */
INLINE int launching_stream(u32 slot)
{
	for (int i = 0; i < MAX_STREAMS; i++) {
		struct gpu_stream *gpu_stream = gpu_stream_at(slot, i);

		if (!gpu_stream || !gpu_stream->key)
			break;
		if (gpu_stream->launches)
			return i;
	}
	return -1;
}

/* Whether what is enqueued unseen on a stream may be kernels, not only copies. */
INLINE bool may_launch(const struct gpu_stream *gpu_stream, u32 slot, u32 index, u32 kind)
{
	if (gpu_stream->launches)
		return true;
	return launching_stream(slot) < 0 && (!(kind & KIND_SYNC_DEVICE) || !index);
}

/* The GPU's default stream stands for all of them if a program syncs the GPU and enqueues unseen. */
INLINE void make_default_gpu_stream(u32 slot, s32 device)
{
	struct gpu_stream *first = gpu_stream_at(slot, 0);
	int index;

	if (first && !first->key)
		find_gpu_stream(slot, gpu_stream_key(0, 0, device, 0), device, &index);
}

/* A sync with an event whose record was not seen: it is treated as one with the stream that launches. */
INLINE void begin_unseen_wait(struct open_call *call, u32 slot)
{
	for (int i = 0; i < MAX_STREAMS; i++)
		call->covered[i] = 0;
	call->stream_slot = launching_stream(slot) < 0 ? 0 : launching_stream(slot);
	call->waits = WAITS_ALL;
}

/* What a sync with one stream, the call's, will have covered. */
INLINE void cover_stream(struct open_call *call, const struct gpu_stream *gpu_stream, bool with_itself)
{
	for (int i = 0; i < MAX_STREAMS; i++)
		call->covered[i] = gpu_stream->covers[i];
	call->covered[call->stream_slot & (MAX_STREAMS - 1)] = READ_ONCE(gpu_stream->end) + (with_itself ? 1 : 0);
}

/* What a sync will have covered when it returns. */
GLOBAL int begin_wait(struct open_call *call, u32 slot, s32 device, u64 event)
{
	u32 kind;

	if (!call)
		return 0;
	kind = COOKIE_KIND(call->cookie);
	if (kind & KIND_SYNC_DEVICE) {
		if (are_enqueues_unseen())
			make_default_gpu_stream(slot, device);
		for (int i = 0; i < MAX_STREAMS; i++) {
			struct gpu_stream *gpu_stream = gpu_stream_at(slot, i);

			call->covered[i] = 0;
			if (gpu_stream && gpu_stream->key && is_on_device(gpu_stream, device))
				call->covered[i] = READ_ONCE(gpu_stream->end);
		}
		call->waits = WAITS_ALL;
	} else if (kind & KIND_SYNC_EVENT) {
		struct position *position = position_of(slot, event);

		if (!position) {
			count_drop(DROP_EVENT_POSITION_UNKNOWN, 1);
			if (are_enqueues_unseen())
				begin_unseen_wait(call, slot);
			return 0;
		}
		for (int i = 0; i < MAX_STREAMS; i++)
			call->covered[i] = position->covers[i];
		call->stream_slot = position->gpu_stream;
		call->waits = WAITS_ALL;
	} else if (kind & KIND_SYNC_STREAM && call->stream_slot >= 0) {
		struct gpu_stream *gpu_stream = gpu_stream_at(slot, call->stream_slot);

		if (!gpu_stream)
			return 0;
		cover_stream(call, gpu_stream, kind & KIND_ENQUEUE); /* a blocking copy also waits for itself */
		call->waits = WAITS_ALL;
	}
	return 0;
}

INLINE void subtract(u64 *to, const struct clocks *later, const struct clocks *earlier)
{
	u64 is_negative = 0;

	for (int i = 0; i < STATES; i++) {
		to[i] = later->ns[i] - earlier->ns[i];
		is_negative |= to[i] >> 63;
	}
	if (unlikely(is_negative))
		settle((struct clocks *)to);
}

/* Whether a stream has work that no sync has covered; `than` is ignored (MAX_STREAMS: none is). */
GLOBAL int has_uncovered_work(u32 slot, u32 than)
{
	for (u32 i = 0; i < MAX_STREAMS; i++) {
		struct gpu_stream *gpu_stream = gpu_stream_at(slot, i);

		if (!gpu_stream || !gpu_stream->key)
			return false;
		if (i != than && READ_ONCE(gpu_stream->begin) != READ_ONCE(gpu_stream->waited))
			return true;
	}
	return false;
}

INLINE void fill_sync_interval(struct sync_interval_record *sync_interval, struct gpu_stream *gpu_stream, struct thread *thread, struct open_call *call,
		       const struct snapshot *at)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id;

	__builtin_memset(sync_interval, 0, sizeof(*sync_interval));
	sync_interval->begin_ns = gpu_stream->close_ns;
	sync_interval->first_ns = gpu_stream->first_ns;
	sync_interval->sync_ns = call->start_ns;
	sync_interval->return_ns = at->now_ns;
	sync_interval->stream = gpu_stream->key;
	sync_interval->launches = READ_ONCE(gpu_stream->launches) - gpu_stream->launches_base;
	sync_interval->size_bytes = READ_ONCE(gpu_stream->size_bytes) - gpu_stream->size_base;
	for (int i = 0; i < OP_SET_WORDS; i++)
		sync_interval->op_set[i] = gpu_stream->op_set[i];
	sync_interval->graph = gpu_stream->graph;
	sync_interval->caller = call->caller;
	sync_interval->step = gpu_stream->step;
	for (int i = 0; i < CHECKPOINTS; i++)
		sync_interval->checkpoint_ns[i] = gpu_stream->checkpoint_ns[i];
	sync_interval->pid = id >> 32;
	sync_interval->begin_tid = gpu_stream->close_tid;
	sync_interval->first_tid = gpu_stream->first_tid;
	sync_interval->sync_tid = tid;
	sync_interval->device = (s32)gpu_stream->device - 1;
	sync_interval->op = COOKIE_OP(call->cookie);
	sync_interval->process_slot = thread->process_slot;
	if (gpu_stream->is_first_unknown)
		sync_interval->flags |= SYNC_INTERVAL_FIRST_UNKNOWN;
	if (!(COOKIE_KIND(call->cookie) & KIND_SYNC))
		sync_interval->flags |= SYNC_INTERVAL_PAGEABLE_COPY;
	if (call->waits == WAITS_BEFORE)
		sync_interval->flags |= SYNC_INTERVAL_BEFORE_COPY;
	if (gpu_stream->close_tid == gpu_stream->first_tid) {
		subtract(sync_interval->idle_state_ns, &gpu_stream->first_clocks, &gpu_stream->close_clocks);
		if (is_flawed(gpu_stream->close_flaws, gpu_stream->first_flaws))
			sync_interval->flags |= SYNC_INTERVAL_INCOMPLETE;
	} else {
		sync_interval->flags |= SYNC_INTERVAL_IDLE_OTHER_THREAD;
	}
	if (gpu_stream->first_tid == tid) {
		subtract(sync_interval->launch_state_ns, &call->clocks, &gpu_stream->first_clocks);
		if (is_flawed(gpu_stream->first_flaws, call->flaws))
			sync_interval->flags |= SYNC_INTERVAL_INCOMPLETE;
	} else {
		sync_interval->flags |= SYNC_INTERVAL_LAUNCH_OTHER_THREAD;
	}
	subtract(sync_interval->sync_state_ns, &at->clocks, &call->clocks);
	if (is_flawed(call->flaws, at->flaws))
		sync_interval->flags |= SYNC_INTERVAL_INCOMPLETE;
	if (thread->last_wake_ns > call->start_ns && thread->last_off_ns >= call->start_ns) {
		/* a page that is read, or memory that is freed first, afterwards: the GPU was done before */
		sync_interval->woken_ns = thread->last_slept_ns > call->start_ns ? thread->last_slept_ns : thread->last_wake_ns;
		sync_interval->flags |= SYNC_INTERVAL_WOKEN;
	}
	if (thread->last_on_ns > call->start_ns || thread->last_off_ns >= call->start_ns) {
		sync_interval->last_off_ns = thread->gone_ns;
		sync_interval->away_ns = thread->away_ns;
		sync_interval->last_on_ns = thread->last_on_ns;
		sync_interval->last_off_state = thread->last_off_state;
	}
}

/*
 * Whether the sync that returns now completed the stream's work, and something had been enqueued; then its interval is
 * the caller's.
 */
INLINE bool take_drained(struct gpu_stream *gpu_stream, u64 own)
{
	u64 begin = READ_ONCE(gpu_stream->begin) - own, base = READ_ONCE(gpu_stream->base);

	if (begin != READ_ONCE(gpu_stream->waited)) /* it left work of the stream uncovered */
		return false;
	if (base == begin) /* nothing was enqueued */
		return false;
	if (__sync_val_compare_and_swap(&gpu_stream->base, base, begin) == base)
		return true;
	count_drop(DROP_SYNC_INTERVAL_RACE, 1);
	return false;
}

/*
 * If enqueues are not seen, each sync with a stream that may launch ends a sync interval. When its first enqueue was is
 * not known; the sync's entry stands for it, so that the time before is the host's part and the time until the GPU is
 * done is the wait.
 */
INLINE bool take_unseen(struct gpu_stream *gpu_stream, u32 slot, u32 index, const struct open_call *call, u64 now, u64 own)
{
	u64 closed = READ_ONCE(gpu_stream->close_ns);

	if (!may_launch(gpu_stream, slot, index, COOKIE_KIND(call->cookie)))
		return false;
	if ((s64)(now - closed) < UNSEEN_MIN_NS)
		return false;
	gpu_stream->base = READ_ONCE(gpu_stream->begin) - own;
	note_first_enqueue(gpu_stream, bpf_get_current_pid_tgid(), call);
	return true;
}

/*
 * The next sync interval of a stream begins at position `begin` with the return of a call. `own` are the bytes that
 * this call itself has enqueued in it: those of a copy that waited first.
 */
INLINE void begin_sync_interval(struct gpu_stream *gpu_stream, const struct open_call *call, const struct snapshot *at, u64 own_bytes)
{
	u64 launches = READ_ONCE(gpu_stream->launches);

	gpu_stream->step = (launches - gpu_stream->launches_base) / CHECKPOINTS + 1;
	for (int i = 0; i < CHECKPOINTS; i++)
		gpu_stream->checkpoint_ns[i] = 0;
	for (int i = 0; i < OP_SET_WORDS; i++)
		gpu_stream->op_set[i] = 0;
	gpu_stream->launches_base = launches;
	gpu_stream->size_base = READ_ONCE(gpu_stream->size_bytes) - own_bytes;
	gpu_stream->graph = 0;
	gpu_stream->close_ns = at->now_ns;
	gpu_stream->close_clocks = at->clocks;
	gpu_stream->close_flaws = at->flaws;
	gpu_stream->close_tid = bpf_get_current_pid_tgid();
	if (call->waits == WAITS_BEFORE) { /* when it changed from waiting to copying was not seen */
		u32 op = COOKIE_OP(call->cookie);

		gpu_stream->op_set[op >> 6 & (OP_SET_WORDS - 1)] = 1ULL << (op & 63);
		gpu_stream->first_ns = at->now_ns;
		gpu_stream->first_clocks = at->clocks;
		gpu_stream->first_flaws = at->flaws;
		gpu_stream->first_tid = gpu_stream->close_tid;
		gpu_stream->is_first_unknown = 0;
	}
}

/* Ends the sync interval of stream `place` (slot << 8 | index) if the sync that returns now completed its work. */
GLOBAL int close_gpu_stream(struct thread *thread, struct open_call *call, struct snapshot *at, u32 place)
{
	u32 slot = place >> 8, index = place & (MAX_STREAMS - 1);
	struct gpu_stream *gpu_stream = gpu_stream_at(slot, index);
	bool is_unseen = are_enqueues_unseen();
	struct sync_interval_record *sync_interval;
	u64 begin, own;

	if (!thread || !call || !at || !gpu_stream)
		return 0;
	own = call->waits == WAITS_BEFORE ? 1 : 0; /* enqueued after what it waited for */
	if (is_unseen ? !take_unseen(gpu_stream, slot, index, call, at->now_ns, own) : !take_drained(gpu_stream, own))
		return 0;
	begin = READ_ONCE(gpu_stream->base);
	own = own ? summed_bytes(call->size_bytes) : 0;
	sync_interval = bpf_ringbuf_reserve(&sync_intervals, sizeof(*sync_interval), 0);
	if (sync_interval) {
		fill_sync_interval(sync_interval, gpu_stream, thread, call, at);
		sync_interval->size_bytes -= own;
		sync_interval->copied_bytes = own;
		sync_interval->copy_ns_per_mib = gpu_stream->copy_ns_per_mib;
		sync_interval->stream_slot = index;
		sync_interval->are_enqueues_unseen = is_unseen;
		if (!is_unseen && has_uncovered_work(slot, index))
			sync_interval->flags |= SYNC_INTERVAL_PARTIAL;
		bpf_ringbuf_submit(sync_interval, BPF_RB_NO_WAKEUP);
	} else {
		count_drop(DROP_SYNC_INTERVALS_RING_FULL, 1);
	}
	begin_sync_interval(gpu_stream, call, at, own);
	if (READ_ONCE(gpu_stream->begin) != begin + (call->waits == WAITS_BEFORE)) { /* an enqueue came in between */
		gpu_stream->first_ns = at->now_ns;
		gpu_stream->first_tid = 0;
		gpu_stream->is_first_unknown = 1;
	}
	return 0;
}

/* A sync has returned: what it covered is done; streams whose work it completed end their sync interval. */
GLOBAL int end_wait(struct thread *thread, struct open_call *call, struct snapshot *at, u32 slot)
{
	if (!thread || !call || !at)
		return 0;
	for (int i = 0; i < MAX_STREAMS; i++) {
		struct gpu_stream *gpu_stream = gpu_stream_at(slot, i);

		if (!gpu_stream || !gpu_stream->key)
			break;
		raise_to(&gpu_stream->waited, call->covered[i]);
	}
	if (COOKIE_KIND(call->cookie) & KIND_SYNC_DEVICE) {
		for (int i = 0; i < MAX_STREAMS; i++) {
			struct gpu_stream *gpu_stream = gpu_stream_at(slot, i);

			if (!gpu_stream || !gpu_stream->key)
				break;
			if (call->covered[i] || are_enqueues_unseen())
				close_gpu_stream(thread, call, at, slot << 8 | i);
		}
	} else if (call->stream_slot >= 0) {
		close_gpu_stream(thread, call, at, slot << 8 | (call->stream_slot & (MAX_STREAMS - 1)));
	}
	return 0;
}

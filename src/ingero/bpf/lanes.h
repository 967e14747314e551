/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Lanes: what is enqueued on each stream of a process, and what has been waited for. A drain ends an epoch.
 *
 * Positions of a lane count its enqueues: `begin` the calls entered, `end` the calls finished, `waited` what a completed
 * wait has covered. A wait covers only enqueues finished before it began; it drains the lane if none has begun since:
 * begin == waited. Order between streams is kept as vector clocks: covers[j] of lane i is the position of lane j that
 * the tail of i follows. State shared by threads is lock-free, because uprobe programs may take no lock.
 */
#pragma once
#include "cells.h"
#include "clocks.h"
#include "launch_times.h"
#include "ops_gen.h"
#include "settings.h"

/* Two waits so close together have no step between them: a loop that launches anything takes longer. */
#define UNSEEN_MIN_NS 50000

/* The first 64 bytes are what each launch needs. */
struct lane {
	u64 key; /* 0: free */
	u64 begin;
	u64 end;
	u64 base; /* position at which the running epoch began */
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
	u64 close_ns; /* a */
	u64 first_ns; /* f */
	u64 close_flaws;
	u64 first_flaws;
	u32 close_tid;
	u32 first_tid;
	u64 mark_ns; /* the last mark (marks.h), and for how long calls have waited for the stream since */
	u64 waited_ns;
	struct launch_times times;
	u64 copy_ns_per_mib; /* of the fastest pageable copy to the device that had nothing to wait for; 0: none */
	u64 pad;
	u64 checkpoint_ns[CHECKPOINTS];
	struct clocks close_clocks; /* of the thread that drained */
	struct clocks first_clocks; /* of the thread that enqueued first */
	u64 covers[MAX_STREAMS];
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, MAX_PROCESSES *MAX_STREAMS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct lane);
} lanes MAP;

struct position {
	u64 covers[MAX_STREAMS];
	u64 image; /* image_of the program that recorded it: its slot and the handle are used again */
	u32 lane;
	u32 pad;
};

/* recorded CUDA events by (process slot << SLOT_SHIFT | handle); a reused handle is harmless, positions of a program only grow */
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
} epochs MAP;

/* A queue holds 1,022 operations; of several streams or graphs fewer. The most seen outstanding: 1,022, 1,012, 957. */
#define FULL_QUEUE_OPERATIONS 900

INLINE struct lane *lane_at(u32 slot, u32 index)
{
	u32 key = (slot & (MAX_PROCESSES - 1)) * MAX_STREAMS + (index & (MAX_STREAMS - 1));

	return bpf_map_lookup_elem(&lanes, &key);
}

/* The default streams are told apart by device, the per-thread ones by thread, too. */
#define LEGACY_STREAM 1
#define PER_THREAD_STREAM 2
INLINE u64 lane_key(u64 stream, u32 flags, s32 device, u32 tid)
{
	u64 place = 1ULL << 55 | (u64)((device < 0 ? 0 : device) & 0x7f) << 56;

	if (stream == PER_THREAD_STREAM || (stream == 0 && flags & FLAG_PER_THREAD_STREAM))
		return place | (u64)tid << 8 | PER_THREAD_STREAM;
	if (stream == 0 || stream == LEGACY_STREAM)
		return place | LEGACY_STREAM;
	return stream;
}

/* The lane with this key, claiming a free one, and its index; NULL and -1 if all are taken. */
INLINE struct lane *find_lane(u32 slot, u64 key, s32 device, int *index)
{
	*index = -1;
	for (int i = 0; i < MAX_STREAMS; i++) {
		struct lane *lane = lane_at(slot, i);

		if (!lane)
			return NULL;
		if (likely(claim(&lane->key, key))) {
			if (device >= 0 && unlikely(lane->device != 1 + (u32)device))
				lane->device = 1 + device;
			*index = i;
			return lane;
		}
	}
	count_loss(LOSS_STREAMS_FULL, 1);
	return NULL;
}

/* Whether so much was enqueued since the stream was last seen done that a launch may have to wait for room. */
INLINE bool may_be_full(u32 slot, s32 index)
{
	struct lane *lane = index >= 0 ? lane_at(slot, index) : NULL;

	return lane && READ_ONCE(lane->begin) - READ_ONCE(lane->waited) >= FULL_QUEUE_OPERATIONS;
}

GLOBAL int end_lesson(struct lane *lane, u64 now)
{
	if (lane)
		learn_launch_cost(&lane->times, READ_ONCE(lane->launches), now);
	return 0;
}

/* An enqueue has returned: how long launches take is learned. Threads that race for a lane lose a launch of a lesson. */
INLINE void note_enqueued(u32 slot, const struct open_call *call, u64 now, u64 duration)
{
	struct lane *lane = call->stream_slot >= 0 ? lane_at(slot, call->stream_slot) : NULL;
	bool is_short;
	u64 waited;

	if (unlikely(!lane))
		return;
	if (unlikely(!(COOKIE_KIND(call->cookie) & KIND_LAUNCH))) {
		lane->times.returned_ns += duration; /* a pause is the host's time between launches, without copies in it */
		return;
	}
	waited = READ_ONCE(lane->waited);
	is_short = waited && READ_ONCE(lane->begin) - waited < FULL_QUEUE_OPERATIONS;
	if (unlikely(note_launch_time(&lane->times, READ_ONCE(lane->launches), call->start_ns, duration, is_short)))
		end_lesson(lane, now);
	lane->times.returned_ns = now;
}

/* An enqueue begins: position, class, checkpoints. Returns whether it is the first of its epoch. */
INLINE bool begin_enqueue(struct lane *lane, u64 cookie, u64 size_bytes, u64 graph)
{
	u64 position = __sync_fetch_and_add(&lane->begin, 1);
	u32 op = COOKIE_OP(cookie);
	u64 bit = 1ULL << (op & 63), *word = &lane->op_set[op >> 6 & (OP_SET_WORDS - 1)];

	if (COOKIE_KIND(cookie) & KIND_LAUNCH) {
		u64 nth = __sync_fetch_and_add(&lane->launches, 1) - READ_ONCE(lane->launches_base);
		u64 step = READ_ONCE(lane->step);

		if (step && nth % step == 0 && nth / step < CHECKPOINTS)
			lane->checkpoint_ns[nth / step & (CHECKPOINTS - 1)] = bpf_ktime_get_ns();
		if (graph)
			lane->graph = graph;
	}
	if (size_bytes)
		__sync_fetch_and_add(&lane->size_bytes, summed_bytes(size_bytes));
	if (!(READ_ONCE(*word) & bit))
		*word |= bit;
	return position == READ_ONCE(lane->base);
}

INLINE void note_first_enqueue(struct lane *lane, u32 tid, const struct open_call *call)
{
	lane->first_ns = call->start_ns;
	lane->first_tid = tid;
	lane->first_clocks = call->clocks;
	lane->first_flaws = call->flaws;
	lane->is_first_unknown = 0;
}

/* However it was left: an enqueue that stayed open would keep every later wait from draining its stream. */
INLINE void end_enqueue(const struct open_call *call, u32 slot)
{
	struct lane *lane;

	if (unlikely(!(COOKIE_KIND(call->cookie) & KIND_ENQUEUE) || call->stream_slot < 0))
		return;
	lane = lane_at(slot, call->stream_slot);
	if (lane)
		__sync_fetch_and_add(&lane->end, 1);
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

/* cudaEventRecord: the event stands for the stream's tail, and all that the tail follows. */
GLOBAL int record_event(u32 slot, u64 event, u32 index)
{
	u64 key = position_key(slot, event);
	struct position *position = bpf_map_lookup_elem(&positions, &key);
	struct process *process = bpf_map_lookup_elem(&processes, &slot);
	struct lane *lane = lane_at(slot, index);

	if (!position) {
		u32 zero = 0;
		void *initial = bpf_map_lookup_elem(&no_position, &zero);

		if (initial)
			bpf_map_update_elem(&positions, &key, initial, BPF_ANY);
		position = bpf_map_lookup_elem(&positions, &key);
	}
	if (!position || !process || !lane)
		return 0;
	position->image = image_of(process);
	for (int i = 0; i < MAX_STREAMS; i++)
		position->covers[i] = lane->covers[i];
	position->covers[index & (MAX_STREAMS - 1)] = READ_ONCE(lane->end);
	position->lane = index;
	return 0;
}

/* cudaStreamWaitEvent: the stream's tail follows what the event stands for. */
GLOBAL int wait_event(u32 slot, u64 event, u32 index)
{
	struct position *position = position_of(slot, event);
	struct lane *lane = lane_at(slot, index);

	if (!position) {
		count_loss(LOSS_EVENT_POSITION_UNKNOWN, 1);
		return 0;
	}
	if (!lane)
		return 0;
	for (u32 i = 0; i < MAX_STREAMS; i++)
		if (i != index)
			raise_to(&lane->covers[i], position->covers[i]);
	return 0;
}

/* Work and waits whose device is not known are taken to be on device 0, most often the only one. */
INLINE bool is_on_device(const struct lane *lane, s32 device)
{
	s32 place = lane->device ? (s32)lane->device - 1 : 0;

	return place == (device < 0 ? 0 : device);
}

/* Whether enqueues are missing from the lanes, because they are not traced for what that costs. */
INLINE bool are_enqueues_unseen(void)
{
	u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);

	return set && set->are_enqueues_unseen;
}

/* The first lane that was seen to launch; -1 if none was: all was launched before anybody looked. */
INLINE int launching_lane(u32 slot)
{
	for (int i = 0; i < MAX_STREAMS; i++) {
		struct lane *lane = lane_at(slot, i);

		if (!lane || !lane->key)
			break;
		if (lane->launches)
			return i;
	}
	return -1;
}

/* Whether what is enqueued on a lane out of sight may be kernels, not only copies. */
INLINE bool may_launch(const struct lane *lane, u32 slot, u32 index, u32 kind)
{
	if (lane->launches)
		return true;
	return launching_lane(slot) < 0 && (!(kind & KIND_SYNC_DEVICE) || !index);
}

/* The device's default stream stands for all of them where a program waits for the device and enqueues out of sight. */
INLINE void make_default_lane(u32 slot, s32 device)
{
	struct lane *first = lane_at(slot, 0);
	int index;

	if (first && !first->key)
		find_lane(slot, lane_key(0, 0, device, 0), device, &index);
}

/* A wait for an event whose record was not seen: it is taken for one for the stream that launches. */
INLINE void begin_unseen_wait(struct open_call *call, u32 slot)
{
	for (int i = 0; i < MAX_STREAMS; i++)
		call->covered[i] = 0;
	call->stream_slot = launching_lane(slot) < 0 ? 0 : launching_lane(slot);
	call->waits = WAITS_ALL;
}

/* What a wait for one stream, the call's, will have covered. */
INLINE void cover_stream(struct open_call *call, const struct lane *lane, bool with_itself)
{
	for (int i = 0; i < MAX_STREAMS; i++)
		call->covered[i] = lane->covers[i];
	call->covered[call->stream_slot & (MAX_STREAMS - 1)] = READ_ONCE(lane->end) + (with_itself ? 1 : 0);
}

/* What a wait will have covered when it returns. */
GLOBAL int begin_wait(struct open_call *call, u32 slot, s32 device, u64 event)
{
	u32 kind;

	if (!call)
		return 0;
	kind = COOKIE_KIND(call->cookie);
	if (kind & KIND_SYNC_DEVICE) {
		if (are_enqueues_unseen())
			make_default_lane(slot, device);
		for (int i = 0; i < MAX_STREAMS; i++) {
			struct lane *lane = lane_at(slot, i);

			call->covered[i] = 0;
			if (lane && lane->key && is_on_device(lane, device))
				call->covered[i] = READ_ONCE(lane->end);
		}
		call->waits = WAITS_ALL;
	} else if (kind & KIND_SYNC_EVENT) {
		struct position *position = position_of(slot, event);

		if (!position) {
			count_loss(LOSS_EVENT_POSITION_UNKNOWN, 1);
			if (are_enqueues_unseen())
				begin_unseen_wait(call, slot);
			return 0;
		}
		for (int i = 0; i < MAX_STREAMS; i++)
			call->covered[i] = position->covers[i];
		call->stream_slot = position->lane;
		call->waits = WAITS_ALL;
	} else if (kind & KIND_SYNC_STREAM && call->stream_slot >= 0) {
		struct lane *lane = lane_at(slot, call->stream_slot);

		if (!lane)
			return 0;
		cover_stream(call, lane, kind & KIND_ENQUEUE); /* a blocking copy waits for itself, too */
		call->waits = WAITS_ALL;
	}
	return 0;
}

INLINE void subtract(u64 *to, const struct clocks *later, const struct clocks *earlier)
{
	u64 is_negative = 0;

	for (int i = 0; i < CLOCKS; i++) {
		to[i] = later->ns[i] - earlier->ns[i];
		is_negative |= to[i] >> 63;
	}
	if (unlikely(is_negative))
		settle((struct clocks *)to);
}

/* Whether a stream has work that no wait has covered; `than` is left out (MAX_STREAMS: none is). */
INLINE bool has_uncovered_work(u32 slot, u32 than)
{
	for (u32 i = 0; i < MAX_STREAMS; i++) {
		struct lane *lane = lane_at(slot, i);

		if (!lane || !lane->key)
			return false;
		if (i != than && READ_ONCE(lane->begin) != READ_ONCE(lane->waited))
			return true;
	}
	return false;
}

INLINE void fill_epoch(struct epoch_record *epoch, struct lane *lane, struct thread *thread, struct open_call *call,
		       const struct snapshot *at)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id;

	__builtin_memset(epoch, 0, sizeof(*epoch));
	epoch->begin_ns = lane->close_ns;
	epoch->first_ns = lane->first_ns;
	epoch->drain_ns = call->start_ns;
	epoch->return_ns = at->now_ns;
	epoch->stream = lane->key;
	epoch->launches = READ_ONCE(lane->launches) - lane->launches_base;
	epoch->size_bytes = READ_ONCE(lane->size_bytes) - lane->size_base;
	for (int i = 0; i < OP_SET_WORDS; i++)
		epoch->op_set[i] = lane->op_set[i];
	epoch->graph = lane->graph;
	epoch->caller = call->caller;
	epoch->step = lane->step;
	for (int i = 0; i < CHECKPOINTS; i++)
		epoch->checkpoint_ns[i] = lane->checkpoint_ns[i];
	epoch->pid = id >> 32;
	epoch->begin_tid = lane->close_tid;
	epoch->first_tid = lane->first_tid;
	epoch->drain_tid = tid;
	epoch->device = (s32)lane->device - 1;
	epoch->op = COOKIE_OP(call->cookie);
	epoch->process_slot = thread->process_slot;
	if (lane->is_first_unknown)
		epoch->flags |= EPOCH_FIRST_UNKNOWN;
	if (!(COOKIE_KIND(call->cookie) & KIND_DRAIN))
		epoch->flags |= EPOCH_PAGEABLE_COPY;
	if (call->waits == WAITS_BEFORE)
		epoch->flags |= EPOCH_BEFORE_COPY;
	if (lane->close_tid == lane->first_tid) {
		subtract(epoch->empty_clock_ns, &lane->first_clocks, &lane->close_clocks);
		if (is_flawed(lane->close_flaws, lane->first_flaws))
			epoch->flags |= EPOCH_INCOMPLETE;
	} else {
		epoch->flags |= EPOCH_E_OTHER_THREAD;
	}
	if (lane->first_tid == tid) {
		subtract(epoch->enqueue_clock_ns, &call->clocks, &lane->first_clocks);
		if (is_flawed(lane->first_flaws, call->flaws))
			epoch->flags |= EPOCH_INCOMPLETE;
	} else {
		epoch->flags |= EPOCH_X_OTHER_THREAD;
	}
	subtract(epoch->drain_clock_ns, &at->clocks, &call->clocks);
	if (is_flawed(call->flaws, at->flaws))
		epoch->flags |= EPOCH_INCOMPLETE;
	if (thread->last_wake_ns > call->start_ns && thread->last_off_ns >= call->start_ns) {
		/* a page that is read, or memory that is freed first, afterwards: the device was ready before */
		epoch->woken_ns = thread->last_slept_ns > call->start_ns ? thread->last_slept_ns : thread->last_wake_ns;
		epoch->flags |= EPOCH_WOKEN;
	}
	if (thread->last_on_ns > call->start_ns || thread->last_off_ns >= call->start_ns) {
		epoch->last_off_ns = thread->gone_ns;
		epoch->away_ns = thread->away_ns;
		epoch->last_on_ns = thread->last_on_ns;
		epoch->last_off_state = thread->last_off_state;
	}
}

/* Whether the wait that returns now drained the lane, and something had been enqueued; then its epoch is the caller's. */
INLINE bool take_drained(struct lane *lane, u64 own)
{
	u64 begin = READ_ONCE(lane->begin) - own, base = READ_ONCE(lane->base);

	if (begin != READ_ONCE(lane->waited)) /* it left work of the stream uncovered */
		return false;
	if (base == begin) /* nothing was enqueued */
		return false;
	if (__sync_val_compare_and_swap(&lane->base, base, begin) == base)
		return true;
	count_loss(LOSS_EPOCH_RACE, 1);
	return false;
}

/*
 * Where enqueues are not seen, each wait for a stream that may launch ends an epoch. When its first enqueue was
 * is not known; the entry of the wait stands for it, so that [a, s] is the host's part and [s, r] the wait.
 */
INLINE bool take_unseen(struct lane *lane, u32 slot, u32 index, const struct open_call *call, u64 now, u64 own)
{
	u64 closed = READ_ONCE(lane->close_ns);

	if (!may_launch(lane, slot, index, COOKIE_KIND(call->cookie)))
		return false;
	if ((s64)(now - closed) < UNSEEN_MIN_NS)
		return false;
	lane->base = READ_ONCE(lane->begin) - own;
	note_first_enqueue(lane, bpf_get_current_pid_tgid(), call);
	return true;
}

/*
 * The next epoch of a lane begins at position `begin` with the return of a call. `own` are the bytes that this call itself
 * has enqueued in it: those of a copy that waited first.
 */
INLINE void begin_epoch(struct lane *lane, const struct open_call *call, const struct snapshot *at, u64 own_bytes)
{
	u64 launches = READ_ONCE(lane->launches);

	lane->step = (launches - lane->launches_base) / CHECKPOINTS + 1;
	for (int i = 0; i < CHECKPOINTS; i++)
		lane->checkpoint_ns[i] = 0;
	for (int i = 0; i < OP_SET_WORDS; i++)
		lane->op_set[i] = 0;
	lane->launches_base = launches;
	lane->size_base = READ_ONCE(lane->size_bytes) - own_bytes;
	lane->graph = 0;
	lane->close_ns = at->now_ns;
	lane->close_clocks = at->clocks;
	lane->close_flaws = at->flaws;
	lane->close_tid = bpf_get_current_pid_tgid();
	if (call->waits == WAITS_BEFORE) { /* nobody saw when it went over from waiting to copying */
		u32 op = COOKIE_OP(call->cookie);

		lane->op_set[op >> 6 & (OP_SET_WORDS - 1)] = 1ULL << (op & 63);
		lane->first_ns = at->now_ns;
		lane->first_clocks = at->clocks;
		lane->first_flaws = at->flaws;
		lane->first_tid = lane->close_tid;
		lane->is_first_unknown = 0;
	}
}

/* Ends the epoch of lane `place` (slot << 8 | index) if the wait that returns now drained it. */
GLOBAL int close_lane(struct thread *thread, struct open_call *call, struct snapshot *at, u32 place)
{
	u32 slot = place >> 8, index = place & (MAX_STREAMS - 1);
	struct lane *lane = lane_at(slot, index);
	bool is_unseen = are_enqueues_unseen();
	struct epoch_record *epoch;
	u64 begin, own;

	if (!thread || !call || !at || !lane)
		return 0;
	own = call->waits == WAITS_BEFORE ? 1 : 0; /* enqueued after what it waited for */
	if (is_unseen ? !take_unseen(lane, slot, index, call, at->now_ns, own) : !take_drained(lane, own))
		return 0;
	begin = READ_ONCE(lane->base);
	own = own ? summed_bytes(call->size_bytes) : 0;
	epoch = bpf_ringbuf_reserve(&epochs, sizeof(*epoch), 0);
	if (epoch) {
		fill_epoch(epoch, lane, thread, call, at);
		epoch->size_bytes -= own;
		epoch->copied_bytes = own;
		epoch->copy_ns_per_mib = lane->copy_ns_per_mib;
		epoch->stream_slot = index;
		epoch->are_enqueues_unseen = is_unseen;
		if (!is_unseen && has_uncovered_work(slot, index))
			epoch->flags |= EPOCH_PARTIAL;
		bpf_ringbuf_submit(epoch, BPF_RB_NO_WAKEUP);
	} else {
		count_loss(LOSS_EPOCHS_RING_FULL, 1);
	}
	begin_epoch(lane, call, at, own);
	if (READ_ONCE(lane->begin) != begin + (call->waits == WAITS_BEFORE)) { /* an enqueue slipped in meanwhile */
		lane->first_ns = at->now_ns;
		lane->first_tid = 0;
		lane->is_first_unknown = 1;
	}
	return 0;
}

/* A wait has returned: what it covered is done; drained lanes end their epoch. */
GLOBAL int end_wait(struct thread *thread, struct open_call *call, struct snapshot *at, u32 slot)
{
	if (!thread || !call || !at)
		return 0;
	for (int i = 0; i < MAX_STREAMS; i++) {
		struct lane *lane = lane_at(slot, i);

		if (!lane || !lane->key)
			break;
		raise_to(&lane->waited, call->covered[i]);
	}
	if (COOKIE_KIND(call->cookie) & KIND_SYNC_DEVICE) {
		for (int i = 0; i < MAX_STREAMS; i++) {
			struct lane *lane = lane_at(slot, i);

			if (!lane || !lane->key)
				break;
			if (call->covered[i] || are_enqueues_unseen())
				close_lane(thread, call, at, slot << 8 | i);
		}
	} else if (call->stream_slot >= 0) {
		close_lane(thread, call, at, slot << 8 | (call->stream_slot & (MAX_STREAMS - 1)));
	}
	return 0;
}

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * The identity of a communicator: read from the arguments of the call that creates it, and from the handle that the
 * call stores.
 *
 * No field of NCCL's own structures is read: they change with every version. These calls are rare, so nothing is
 * sampled. They are also probed by api_calls.bpf.c, which times them.
 *
 * Source: nccl.h and init.cc of NCCL 2.31 (and older ones). ncclCommInitRank and related calls store the handle before
 * they return, also in a group. ncclCommSplit, Shrink, and Grow store NULL first and the handle when all is done: in a
 * group, that is in the outermost ncclGroupEnd.
 */
#include "arguments.h"
#include "clocks.h"
#include "communicators.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define UNIQUE_ID_BYTES 128
#define NO_COLOR (-1)
#define MOST_DEVICES 64	 /* of one ncclCommInitAll: more than any host has */
#define MOST_EXCLUDED 64 /* ranks of one ncclCommShrink; with more the rank is left to ncclCommUserRank */
#define PARKED 32	 /* communicators that one group creates */
#define NCCL_IN_PROGRESS 7
#define FNV_OFFSET 0xcbf29ce484222325ULL
#define FNV_PRIME 0x100000001b3ULL

/* A call that has not returned, or (place > 0) one of the running group whose handle is still to come. */
struct making {
	u64 sp;
	u64 start_ns;
	u64 out; /* where the call stores the handle, or the requested number */
	u64 handle; /* of the communicator the call is about */
	u64 hash;
	u32 role;
	u32 call; /* which of ops.COMMUNICATOR_CALLS */
	u32 parent;
	u32 nth_child;
	u32 excluded;
	s32 rank;
	s32 nranks;
	s32 color;
	s32 key;
	u32 pad;
};

struct making_key {
	u32 tid;
	u32 place;
};

/* LRU: entries left by threads that end inside a call are evicted */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, struct making_key);
	MAP_TYPE(value, struct making);
} makings MAP;

#define VERIFIED_ONCE __attribute__((noinline)) /* a global function: the verifier does not follow each call into it */

/* FNV-1a, 64 bits: the same on every rank, whatever node it is on; never 0, which means unknown */
INLINE u64 hash_word(u64 hash, u64 word)
{
	for (int i = 0; i < 8; i++)
		hash = (hash ^ (word >> 8 * i & 0xff)) * FNV_PRIME;
	return hash;
}

VERIFIED_ONCE u64 hash_unique_id(u64 address)
{
	u64 word[UNIQUE_ID_BYTES / 8], hash = FNV_OFFSET;

	if (!address || bpf_probe_read_user(word, sizeof(word), (void *)address)) {
		count_drop(DROP_USER_READ_FAILED, 1);
		return 0;
	}
	for (int i = 0; i < UNIQUE_ID_BYTES / 8; i++)
		hash = hash_word(hash, word[i]);
	return hash ? hash : 1;
}

/* Equal on the ranks that end up in the same child: they create their parent's children in the same order. */
INLINE u64 hash_child(u64 parent, u32 role, u32 nth, s32 color)
{
	u64 hash;

	if (!parent)
		return 0;
	hash = hash_word(hash_word(hash_word(parent, role), nth), (u32)color);
	return hash ? hash : 1;
}

/*
 * ncclUniqueId by value: x86-64 puts it on the stack and leaves the registers to the other arguments, arm64 passes its
 * address.
 */
INLINE void read_init_rank(struct pt_regs *context, const struct arguments *arguments, struct making *making)
{
#if defined(__TARGET_ARCH_x86)
	making->hash = hash_unique_id(STACK_POINTER(context) + 8);
	making->rank = argument(arguments, 3);
#else
	making->hash = hash_unique_id(argument(arguments, 3));
	making->rank = argument(arguments, 4);
#endif
	making->out = argument(arguments, 1);
	making->nranks = argument(arguments, 2);
}

/* How many of the excluded ranks are below `rank`; -1 if that cannot be determined. */
VERIFIED_ONCE int excluded_below(u64 list, u32 count, s32 rank)
{
	int below = 0;

	if (rank < 0 || count > MOST_EXCLUDED)
		return -1;
	for (u32 i = 0; i < MOST_EXCLUDED && i < count; i++) {
		s32 left_out = 0;

		if (bpf_probe_read_user(&left_out, sizeof(left_out), (void *)(list + 4 * i)))
			return -1;
		below += (u32)(left_out - rank) >> 31; /* no branch: 64 of them would double the paths 64 times */
	}
	return below;
}

/* The parent's part of a split, shrink or grow. */
INLINE struct communicator *read_parent(const struct arguments *arguments, u32 slot, struct making *making)
{
	struct communicator *parent;

	making->handle = argument(arguments, 1);
	parent = making->handle ? communicator_of(slot, making->handle) : NULL;
	if (!parent)
		return NULL;
	making->parent = parent->number;
	making->nth_child = __sync_fetch_and_add(&parent->children, 1) + 1;
	return parent;
}

INLINE void read_split(const struct arguments *arguments, u32 slot, struct making *making)
{
	struct communicator *parent = read_parent(arguments, slot, making);

	making->color = argument(arguments, 2);
	making->key = argument(arguments, 3);
	making->out = argument(arguments, 4);
	if (parent && parent->is_whole)
		making->hash = hash_child(parent->hash, COMMUNICATOR_SPLIT, making->nth_child, making->color);
}

INLINE void read_shrink(const struct arguments *arguments, u32 slot, struct making *making)
{
	struct communicator *parent = read_parent(arguments, slot, making);
	int below;

	making->excluded = argument(arguments, 3);
	making->out = argument(arguments, 4);
	if (!parent)
		return;
	if (parent->is_whole)
		making->hash = hash_child(parent->hash, COMMUNICATOR_SHRINK, making->nth_child, 0);
	if (parent->nranks > 0)
		making->nranks = parent->nranks - (s32)making->excluded;
	below = excluded_below(argument(arguments, 2), making->excluded, parent->rank);
	if (below >= 0)
		making->rank = parent->rank - below;
}

/* What the ranks of a grown communicator have in common is in none of the arguments that all of them pass. */
INLINE void read_grow(const struct arguments *arguments, u32 slot, struct making *making)
{
	read_parent(arguments, slot, making);
	making->nranks = argument(arguments, 2);
	making->rank = argument(arguments, 4);
	making->out = argument(arguments, 5);
}

INLINE void read_call(struct pt_regs *context, const struct arguments *arguments, u32 slot, struct making *making)
{
	making->rank = making->nranks = -1;
	making->start_ns = bpf_ktime_get_ns();
	making->sp = STACK_POINTER(context);
	switch (making->role) {
	case COMMUNICATOR_INIT_RANK:
		read_init_rank(context, arguments, making);
		break;
	case COMMUNICATOR_INIT_SCALABLE: /* NCCL itself uses the first of the ids for the whole */
		making->out = argument(arguments, 1);
		making->nranks = argument(arguments, 2);
		making->rank = argument(arguments, 3);
		making->hash = hash_unique_id(argument(arguments, 5));
		break;
	case COMMUNICATOR_INIT_ALL: /* all ranks are in this process: any number that is not used elsewhere will do */
		making->out = argument(arguments, 1);
		making->nranks = argument(arguments, 2);
		making->hash = hash_word(hash_word(FNV_OFFSET, making->start_ns), bpf_get_current_pid_tgid()) | 1;
		break;
	case COMMUNICATOR_SPLIT:
		read_split(arguments, slot, making);
		break;
	case COMMUNICATOR_SHRINK:
		read_shrink(arguments, slot, making);
		break;
	case COMMUNICATOR_GROW:
		read_grow(arguments, slot, making);
		break;
	default:
		making->handle = argument(arguments, 1);
		making->out = argument(arguments, 2);
	}
}

/* From here on the handle is this communicator's, whatever it was before. */
VERIFIED_ONCE int enter_communicator(const struct making *making, u32 slot, u64 handle, s32 rank)
{
	struct communicator fresh = {.rank = rank, .is_whole = 1};
	struct communicator_record *record;
	bool is_left;

	if (!making)
		return 0;
	fresh.hash = making->hash;
	fresh.nranks = making->nranks;
	is_left = making->role == COMMUNICATOR_SPLIT && making->color == NO_COLOR;
	record = bpf_ringbuf_reserve(&nccl, sizeof(*record), 0); /* before the records that follow the handle */
	if (!is_left) {
		if (!handle)
			fresh.number = new_communicator_number();
		else if (!put_communicator(slot, handle, &fresh))
			fresh.number = new_communicator_number();
	}
	record = begin_communicator(record, is_left ? COMMUNICATOR_LEFT : COMMUNICATOR_MADE, slot, handle);
	if (!record)
		return 0;
	record->time_ns = making->start_ns;
	record->hash = making->hash;
	record->number = fresh.number;
	record->parent = making->parent;
	record->nth_child = making->nth_child;
	record->rank = rank;
	record->nranks = making->nranks;
	record->color = making->color;
	record->key = making->key;
	record->excluded = making->excluded;
	record->call = making->call;
	bpf_ringbuf_submit(record, 0);
	return 0;
}

VERIFIED_ONCE int end_communicator(u32 slot, u64 handle, u64 time_ns, u32 call)
{
	struct communicator *found = known_communicator(slot, handle);
	struct communicator_record *record;

	if (!found)
		return 0;
	record = reserve_communicator(COMMUNICATOR_ENDED, slot, handle);
	if (!record)
		return 0;
	record->time_ns = time_ns;
	record->number = found->number;
	record->collectives = READ_ONCE(found->collectives);
	record->last_ns = found->last_ns;
	record->last_bytes = found->last_bytes;
	record->last_extra = found->last_extra;
	record->last_op = found->last_op;
	record->last_tid = found->last_tid;
	record->call = call;
	bpf_ringbuf_submit(record, 0);
	return 0;
}

/* ncclCommUserRank, ncclCommCount: tell what no argument told. */
INLINE void learn(const struct making *making, u32 slot)
{
	struct communicator *found = communicator_of(slot, making->handle);
	struct communicator_record *record;
	s32 value = -1, *place;

	if (!found || !making->out || bpf_probe_read_user(&value, sizeof(value), (void *)making->out) || value < 0)
		return;
	place = making->role == COMMUNICATOR_USER_RANK ? &found->rank : &found->nranks;
	if (*place == value)
		return;
	*place = value;
	record = reserve_communicator(COMMUNICATOR_RANKED, slot, making->handle);
	if (!record)
		return;
	record->number = found->number;
	record->rank = found->rank;
	record->nranks = found->nranks;
	record->call = making->call;
	bpf_ringbuf_submit(record, 0);
}

INLINE bool is_in_group(struct task_struct *task)
{
	struct thread *thread = thread_of(task);

	return thread && thread->nccl_group & 0xff;
}

/* Keeps a communicator until the end of the group; if there is no room, its handle stays unknown. */
VERIFIED_ONCE int park(const struct making *making, u32 tid)
{
	struct making parked; /* 6.1 accepts no map value from memory of which it knows only the size */

	if (!making)
		return 0;
	parked = *making;
	for (u32 place = 1; place <= PARKED; place++) {
		struct making_key key = {.tid = tid, .place = place};

		if (!bpf_map_update_elem(&makings, &key, &parked, BPF_NOEXIST))
			return 1;
	}
	return 0;
}

VERIFIED_ONCE int enter_parked(u32 slot, u32 tid)
{
	for (u32 place = 1; place <= PARKED; place++) {
		struct making_key key = {.tid = tid, .place = place};
		struct making *parked = bpf_map_lookup_elem(&makings, &key);
		struct making making;
		u64 handle;

		if (!parked)
			break;
		making = *parked;
		bpf_map_delete_elem(&makings, &key);
		handle = read_user_word(making.out);
		if (!handle)
			count_drop(DROP_COMMUNICATOR_HANDLE_UNKNOWN, 1);
		enter_communicator(&making, slot, handle, making.rank);
	}
	return 0;
}

VERIFIED_ONCE int enter_all(const struct making *making, u32 slot)
{
	if (!making)
		return 0;
	for (s32 rank = 0; rank < MOST_DEVICES && rank < making->nranks; rank++)
		enter_communicator(making, slot, read_user_word(making->out + 8 * rank), rank);
	return 0;
}

/* Split, shrink, and grow leave NULL until all is done. If non-blocking, that is later than anything seen here. */
INLINE void enter_made(const struct making *making, u32 slot, u32 tid, struct task_struct *task)
{
	u64 handle = read_user_word(making->out);
	bool is_left = making->role == COMMUNICATOR_SPLIT && making->color == NO_COLOR;

	if (!handle && !is_left) {
		if (is_in_group(task) && park(making, tid))
			return;
		count_drop(DROP_COMMUNICATOR_HANDLE_UNKNOWN, 1);
	}
	enter_communicator(making, slot, is_left ? 0 : handle, making->rank);
}

/* The memory of an ended communicator may already belong to another one: only its own entry is removed. */
INLINE void forget_communicator(const struct making *making, u32 slot)
{
	struct communicator_key key = {.handle = making->handle, .slot = slot};
	struct communicator *found = bpf_map_lookup_elem(&communicators, &key);

	if (found && found->number == making->parent)
		bpf_map_delete_elem(&communicators, &key);
}

INLINE void on_end(struct making *making, u32 slot)
{
	struct communicator *found = making->handle ? communicator_of(slot, making->handle) : NULL;

	making->parent = found ? found->number : 0;
	end_communicator(slot, making->handle, making->start_ns, making->call);
}

/* Returns whether the return is needed. */
INLINE bool on_entry(struct pt_regs *context, bool has_return)
{
	u64 id = bpf_get_current_pid_tgid();
	struct making_key key = {.tid = id, .place = 0};
	u64 cookie = bpf_get_attach_cookie(context);
	struct making making = {.role = cookie & 0xff, .call = cookie >> 8};
	u32 slot = slot_of(id >> 32);
	struct arguments arguments;
	struct making *outer;

	if (slot == NO_SLOT)
		return false;
	outer = bpf_map_lookup_elem(&makings, &key);
	if (outer && outer->sp > STACK_POINTER(context) && outer->sp - STACK_POINTER(context) < 8 << 20)
		return false; /* one of these calls that makes another */
	if (!read_arguments(context, &arguments))
		count_drop(DROP_USER_READ_FAILED, 1);
	read_call(context, &arguments, slot, &making);
	if (making.role == COMMUNICATOR_END || making.role == COMMUNICATOR_FINALIZE)
		on_end(&making, slot);
	if (!has_return) {
		if (making.role <= COMMUNICATOR_GROW)
			enter_communicator(&making, slot, 0, making.rank);
		return false;
	}
	return !bpf_map_update_elem(&makings, &key, &making, BPF_ANY);
}

INLINE int on_return(struct pt_regs *context)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 id = bpf_get_current_pid_tgid();
	struct making_key key = {.tid = id, .place = 0};
	struct making *open = bpf_map_lookup_elem(&makings, &key), making;
	u32 slot = slot_of(id >> 32);
	s32 ret = RETURN_VALUE(context);

	if (!open || open->sp != STACK_POINTER_AT_ENTRY(context))
		return 0;
	making = *open;
	bpf_map_delete_elem(&makings, &key);
	if (slot == NO_SLOT)
		return 0;
	if (making.role == COMMUNICATOR_END) {
		forget_communicator(&making, slot);
	} else if (making.role == COMMUNICATOR_GROUP_END) {
		if (!is_in_group(task))
			enter_parked(slot, id);
	} else if (ret && ret != NCCL_IN_PROGRESS) {
		return 0;
	} else if (making.role == COMMUNICATOR_INIT_ALL) {
		enter_all(&making, slot);
	} else if (making.role <= COMMUNICATOR_GROW) {
		enter_made(&making, slot, id, task);
	} else if (making.role == COMMUNICATOR_USER_RANK || making.role == COMMUNICATOR_COUNT) {
		learn(&making, slot);
	}
	return 0;
}

SEC("uprobe")
int call_session(struct pt_regs *context)
{
	return ON_ITS_OWN_STACK(is_at_return(context) ? on_return(context) : !on_entry(context, true));
}

UPROBE(call_entry, (on_entry(context, true), 0))
UPROBE(call_return, on_return(context))

/* Entry only, where returns may not be probed: the communicator's identity, but not its handle. */
UPROBE(call_count, (on_entry(context, false), 0))

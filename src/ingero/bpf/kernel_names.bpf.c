// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Names of kernels: read from the calls that register a host stub, return a handle, or tell its name.
 *
 * These calls are rare, with one exception: importing PyTorch registers more than 100,000 functions within a second.
 *
 * Source: CUDA driver API (cuda.h) and runtime (crt/host_runtime.h): a handle is stored before the call returns.
 */
#include "arguments.h"
#include "kernel_counts.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NAME_WORDS (KERNEL_NAME_BYTES / 8)

const volatile u64 kernel_names_ring_bytes = 1 << 20;

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20); /* (agent) */
} kernel_names MAP;

/* A call that has not returned. They nest: cudaGetFuncBySymbol calls cuLibraryGetKernel. */
struct asking {
	u64 sp;
	u64 start_ns;
	u64 out;    /* where the call stores its answer */
	u64 source; /* what it was given: an address, a handle, or a pointer to the name */
};

struct asking_key {
	u32 tid;
	u32 call; /* which of ops.KERNEL_NAME_CALLS */
};

/* LRU: entries left by threads that end inside a call are evicted */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, struct asking_key);
	MAP_TYPE(value, struct asking);
} askings MAP;

INLINE struct kernel_name_record *reserve_name(u32 slot, u8 role, u64 handle)
{
	struct kernel_name_record *record = bpf_ringbuf_reserve(&kernel_names, sizeof(*record), 0);

	if (!record) {
		count_drop(DROP_KERNEL_NAMES_RING_FULL, 1);
		return NULL;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->time_ns = bpf_ktime_get_ns();
	record->handle = handle;
	record->pid = bpf_get_current_pid_tgid() >> 32;
	record->process_slot = slot;
	record->role = role;
	return record;
}

INLINE void submit_name(struct kernel_name_record *record)
{
	bpf_ringbuf_submit(record, ring_wakeup(&kernel_names, kernel_names_ring_bytes, sizeof(*record)));
}

INLINE bool read_name(struct kernel_name_record *record, u64 address)
{
	long length = address ? bpf_probe_read_user_str(record->name, KERNEL_NAME_BYTES, (void *)address) : 0;

	if (length <= 1) {
		count_drop(DROP_USER_READ_FAILED, 1);
		return false;
	}
	record->is_cut = length == KERNEL_NAME_BYTES;
	return true;
}

/* The rest of the name is zero, so all of it can be hashed; never 0. */
INLINE u64 hash_name(const struct kernel_name_record *record)
{
	const u64 *word = (const u64 *)record->name;
	u64 hash = 0;

	for (int i = 0; i < NAME_WORDS; i++)
		hash = (hash ^ word[i] ^ hash >> 29) * 0x9E3779B97F4A7C15ULL;
	return hash | 1;
}

INLINE struct kernel_handle *enter_kernel_handle(u64 key)
{
	struct kernel_handle *known = find_kernel_handle(key);
	u32 hash = hash_of(key);

	if (known)
		return known;
	for (u32 i = 0; i < CELL_PROBES; i++) {
		u32 index = (hash + i) & (KERNEL_HANDLES - 1);
		struct kernel_handle *handle = bpf_map_lookup_elem(&kernel_handles, &index);

		if (handle && claim(&handle->key, key))
			return handle;
	}
	count_drop(DROP_KERNEL_HANDLES_FULL, 1);
	return NULL;
}

/*
 * Whether this is new. What was requested by an address within the call that told the name (or the other way round) is
 * the same kernel; otherwise another name, or another source, means that the handle was reused.
 */
INLINE bool note_handle(struct kernel_handle *known, u64 name_hash, u64 source, const struct asking *asking)
{
	u64 *place = name_hash ? &known->name_hash : &known->source;
	u64 value = name_hash ? name_hash : source;

	if (known->generation && *place == value)
		return false;
	if (!(known->generation && !*place && known->told_ns >= asking->start_ns)) {
		known->name_hash = known->source = 0;
		WRITE_ONCE(known->generation, known->generation + 1);
	}
	*place = value;
	known->told_ns = bpf_ktime_get_ns();
	return true;
}

/* From here on it is a kernel without a name, not the one it was before. */
INLINE void forget_name(struct kernel_handle *known)
{
	known->name_hash = known->source = 0;
	WRITE_ONCE(known->generation, known->generation + 1);
}

INLINE void tell(u32 slot, u8 role, u64 handle, u64 name, u64 source, const struct asking *asking)
{
	struct process *process = bpf_map_lookup_elem(&processes, &slot);
	struct kernel_name_record *record;
	struct kernel_handle *known;
	u64 hash = 0;

	known = process ? enter_kernel_handle(kernel_handle_key(slot, handle)) : NULL;
	if (!known)
		return;
	process->has_kernel_handles = 1;
	record = reserve_name(slot, role, handle);
	if (!record) {
		forget_name(known);
		return;
	}
	if (name && read_name(record, name))
		hash = hash_name(record);
	if (!hash && !source) {
		forget_name(known);
	} else if (note_handle(known, hash, source, asking)) {
		record->source = source;
		record->generation = known->generation;
		submit_name(record);
		return;
	}
	bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
}

INLINE void on_register(u32 slot, const struct arguments *arguments)
{
	struct kernel_name_record *record = reserve_name(slot, KERNEL_REGISTERED, argument(arguments, 2));

	if (!record)
		return;
	if (read_name(record, argument(arguments, 4)))
		submit_name(record);
	else
		bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
}

/* Returns whether the return is needed. */
INLINE bool on_entry(struct pt_regs *context)
{
	u64 id = bpf_get_current_pid_tgid(), cookie = bpf_get_attach_cookie(context);
	struct asking_key key = {.tid = id, .call = cookie >> 8};
	struct asking asking = {.sp = STACK_POINTER(context), .start_ns = bpf_ktime_get_ns()};
	u32 slot = slot_of(id >> 32), role = cookie & 0xff;
	struct arguments arguments;

	if (slot == NO_SLOT)
		return false;
	if (!read_arguments(context, &arguments))
		count_drop(DROP_USER_READ_FAILED, 1);
	if (role == KERNEL_REGISTERED) {
		on_register(slot, &arguments);
		return false;
	}
	asking.out = argument(&arguments, 1);
	asking.source = argument(&arguments, role == KERNEL_NAMED ? 3 : 2);
	return !bpf_map_update_elem(&askings, &key, &asking, BPF_ANY);
}

INLINE int on_return(struct pt_regs *context)
{
	u64 id = bpf_get_current_pid_tgid(), cookie = bpf_get_attach_cookie(context), answer;
	struct asking_key key = {.tid = id, .call = cookie >> 8};
	struct asking *open = bpf_map_lookup_elem(&askings, &key), asking;
	u32 slot = slot_of(id >> 32), role = cookie & 0xff;

	if (!open || open->sp != STACK_POINTER_AT_ENTRY(context))
		return 0;
	asking = *open;
	bpf_map_delete_elem(&askings, &key);
	if (slot == NO_SLOT || RETURN_VALUE(context) || !asking.out)
		return 0;
	answer = read_user_word(asking.out);
	if (!answer)
		return 0;
	if (role == KERNEL_NAMED)
		tell(slot, role, answer, asking.source, 0, &asking);
	else if (role == KERNEL_TOLD)
		tell(slot, role, asking.source, answer, 0, &asking);
	else if (answer != asking.source)
		tell(slot, role, answer, 0, asking.source, &asking);
	return 0;
}

SEC("uprobe")
int call_session(struct pt_regs *context)
{
	return ON_ITS_OWN_STACK(is_at_return(context) ? on_return(context) : !on_entry(context));
}

UPROBE(call_entry, (on_entry(context), 0))
UPROBE(call_return, on_return(context))

/* Entry only, where returns may not be probed: host stubs get names, handles do not. */
UPROBE(call_count, (on_entry(context), 0))

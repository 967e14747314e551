/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* What was already sent: Python stacks, code objects, and native stacks, by their hash. */
#pragma once
#include "maps.h"

#define FNV_BASIS 0xcbf29ce484222325ULL
#define FNV_PRIME 0x100000001b3ULL

struct seen_key {
	u64 hash;
	u64 address; /* of the code object; 0 for a stack */
	u32 pid;
	u32 pad;
};

/* what was sent; what is evicted is sent again. A large program has 20,000 code objects, a few hundred on stacks. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 1 << 15);
	MAP_TYPE(key, struct seen_key);
	MAP_TYPE(value, u8);
} seen_python MAP;

INLINE u64 mixed(u64 hash, u64 word)
{
	hash = (hash ^ word) * FNV_PRIME;
	return hash ^ hash >> 29;
}

INLINE bool is_known(u64 hash, u64 address, u32 pid)
{
	struct seen_key key = {.hash = hash, .address = address, .pid = pid};

	return bpf_map_lookup_elem(&seen_python, &key);
}

/* Whether `seen_python` lacks this; it contains it from now on. */
INLINE bool is_new(u64 hash, u64 address, u32 pid)
{
	struct seen_key key = {.hash = hash, .address = address, .pid = pid};
	u8 yes = 1;

	if (bpf_map_lookup_elem(&seen_python, &key))
		return false;
	bpf_map_update_elem(&seen_python, &key, &yes, BPF_ANY);
	return true;
}

INLINE void forget_seen(u64 hash, u64 address, u32 pid)
{
	struct seen_key key = {.hash = hash, .address = address, .pid = pid};

	bpf_map_delete_elem(&seen_python, &key);
}

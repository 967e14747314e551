/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* What the agent may change while tracing. */
#pragma once
#include "maps.h"

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct settings);
} settings MAP;

INLINE bool has_op(const u64 *set, u32 op)
{
	return set[op >> 6 & (OP_SET_WORDS - 1)] >> (op & 63) & 1;
}

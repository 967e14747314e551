// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Keeps a CPU in the interrupt of its sampling clock for a while: its other timers come late, as in a machine's pause. */
#include "maps.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define HOLD_NS 12000000ULL /* longer than the tick of any kernel */
#define LOOPS (1 << 22)

struct held_up {
	u64 begin_ns;
	u64 end_ns;
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 20);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct held_up);
} held_up MAP;

u32 count = 0;

static long is_over(__attribute__((unused)) u32 index, void *until_ns)
{
	return bpf_ktime_get_ns() >= *(u64 *)until_ns;
}

SEC("perf_event")
int hold_up(__attribute__((unused)) void *ctx)
{
	u32 index = count; /* one CPU */
	struct held_up *held = bpf_map_lookup_elem(&held_up, &index);
	u64 begin_ns = bpf_ktime_get_ns(), until_ns = begin_ns + HOLD_NS;

	if (!held)
		return 0;
	count = index + 1;
	bpf_loop(LOOPS, is_over, &until_ns, 0);
	held->begin_ns = begin_ns;
	held->end_ns = bpf_ktime_get_ns();
	return 0;
}

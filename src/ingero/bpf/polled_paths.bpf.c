// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * The paths that one thread asks for: what a loop checks that sleeps in between, such as a lock file.
 *
 * Attached for at most a second, and only when such a loop is all that a process does: meanwhile every system call on
 * the host takes some 0.1 us longer.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define PATHS 8 /* the latest; a power of two */
#define PATH_BYTES 512
#define NUMBERS 512 /* of system calls */

const volatile u32 wanted_tid = 0;
/* bits by number of the call: its path is the first argument, or the second */
const volatile u64 path_is_first[NUMBERS / 64] = {};
const volatile u64 path_is_second[NUMBERS / 64] = {};

struct polled_path {
	char text[PATH_BYTES];
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, PATHS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct polled_path);
} polled_paths MAP;

u32 polled = 0; /* only the wanted thread counts */

SEC("tp_btf/sys_enter")
int note_path(u64 *ctx)
{
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	u64 number = ctx[1], bit = 1ULL << (number & 63);
	struct polled_path *path;
	u64 address;
	u32 place;

	if ((u32)bpf_get_current_pid_tgid() != wanted_tid || number >= NUMBERS)
		return 0;
	if (path_is_first[number >> 6] & bit)
		address = SYSCALL_FIRST(regs);
	else if (path_is_second[number >> 6] & bit)
		address = SYSCALL_SECOND(regs);
	else
		return 0;
	place = polled++ & (PATHS - 1);
	path = bpf_map_lookup_elem(&polled_paths, &place);
	if (path)
		bpf_probe_read_user_str(path->text, PATH_BYTES, (void *)address);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Counts the code objects freed by an interpreter that does not count them itself (before 3.14).
 *
 * Attached to the destructor of the code object type, in one process. It runs before the memory is released, so a code
 * object found at an address while the count is unchanged is the one that was there before.
 */
#include "maps.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("uprobe")
int code_freed(void *context)
{
	u32 slot = bpf_get_attach_cookie(context);
	struct freed_code *freed = bpf_map_lookup_elem(&freed_codes, &slot);

	if (freed)
		__sync_fetch_and_add(&freed->count, 1);
	return 0;
}

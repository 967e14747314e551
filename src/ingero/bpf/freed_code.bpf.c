// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Counts the code objects that an interpreter frees which does not count them itself, as those before 3.14 do not.
 *
 * Attached where the type of code objects keeps its destructor, in one process. It runs before the memory is given back,
 * so whoever finds a code object at an address of which the count is still the same finds the one that was there.
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

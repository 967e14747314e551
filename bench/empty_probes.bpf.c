// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* A probe that does nothing, where ours are: what is left is the price of the traps. NESTED: an entry without return. */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("uprobe")
int call_session(__attribute__((unused)) void *context)
{
	return NESTED;
}

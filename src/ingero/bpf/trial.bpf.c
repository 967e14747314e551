// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Does nothing, on entry and return of one function of one process of ours: the safety trial of return probes. */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("uprobe")
int trial(void *context)
{
	(void)context;
	return 0;
}

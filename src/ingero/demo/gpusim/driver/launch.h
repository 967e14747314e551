/* SPDX-License-Identifier: Apache-2.0 */
/* Handing work to the device. */
#ifndef GPUSIM_LAUNCH_H
#define GPUSIM_LAUNCH_H

#include "queue.h"

struct kernel {				/* CUfunction and CUkernel alike */
	struct kernel *next;
	struct module *module;
	int64_t wave_ns;		/* what one wave of blocks takes: "#ns=" in the name */
	uint64_t truth;			/* its place in the ground truth */
	bool is_join;			/* "#join": its parameter is a struct join */
	char name[];
};

int64_t kernel_duration_ns(const struct kernel *kernel, const unsigned int grid[3]);

/* Enqueue one piece of work, or note it in the graph that the stream is capturing. Spends the launch's host time. */
int launch_run(struct stream *stream, enum gpusim_engine engine, int64_t duration_ns);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for the device: spinning, yielding or sleeping, as the process asked. */
#ifndef GPUSIM_WAIT_H
#define GPUSIM_WAIT_H

#include <stdbool.h>

#include "queue.h"

enum wait_mode {
	WAIT_SPIN = 1,			/* the numbers are CU_CTX_SCHED_* */
	WAIT_YIELD = 2,
	WAIT_BLOCK = 4,
};

/* Each returns 0 or a CUDA error, and writes the records of the truth file. */
int wait_for_stream(struct stream *stream, int64_t *end_ns);	/* @end_ns: when its work was done */
int wait_for_context(struct context *context, bool is_drain);
int wait_for_moment(struct moment *moment, uint64_t begun, bool block);

/* Without a record: what is waited for lies inside the driver. */
int wait_until_past(struct moment *moment);

/* A copy to pageable memory: as asked until the work @before it has ended, and then the thread copies, too. */
int wait_for_bytes(struct stream *stream, struct moment *before, int64_t *end_ns);

/* A short pause for a launch that finds the queue full. */
int wait_for_room(struct context *context);

/* Wake everybody who sleeps until something unresolved is resolved. */
void wait_wake_all(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Events: a recorded position of a stream. */
#ifndef GPUSIM_EVENT_H
#define GPUSIM_EVENT_H

#include "queue.h"

#define EVENT_BLOCKING_SYNC 1u
#define EVENT_DISABLE_TIMING 2u

struct event {
	unsigned int flags;
	struct stream *stream;		/* of the last record; NULL before the first */
	struct moment *moment;
	uint64_t begun;			/* enqueues on the stream up to the record */
	struct graph *capture;		/* recorded while capturing: a position in that graph */
	int64_t capture_ns;
};

/* Later work of @stream waits for what the event has last recorded. */
int event_await(struct event *event, struct stream *stream);

#endif

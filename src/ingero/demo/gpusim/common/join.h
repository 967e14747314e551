/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A collective as the device sees it: work that begins when every participant
 * has reached it. libnccl passes it to the driver as the only parameter of a
 * kernel whose name ends in "#join". A participant publishes the time at which
 * its stream got there in cells of memory shared by the ranks.
 */
#ifndef GPUSIM_JOIN_H
#define GPUSIM_JOIN_H

#include <stdatomic.h>
#include <stdint.h>

struct join_cell {
	_Atomic int64_t ready_ns;
	_Atomic uint64_t sequence;	/* which use of the cell ready_ns belongs to; written last */
};

struct join_point {
	struct join_cell *cell;
	uint64_t sequence;
};

struct join {
	_Atomic int *aborted;		/* non-zero: the communicator gives up waiting */
	int64_t duration_ns;
	int published;			/* done by the driver */
	int mine;			/* the first @mine points are published, */
	int points;			/* the others are awaited */
	struct join_point point[];
};

#endif

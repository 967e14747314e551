/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ground-truth file ($GPUSIM_TRACE; %p becomes the pid): what the libraries
 * themselves saw of every call, every wait for a device and every sync of a
 * stream. Several processes may write one file. truth.py reads the structures
 * below from this header, so they are declared once.
 *
 * Times are CLOCK_MONOTONIC ns. A zeroed file is a valid empty one.
 */
#ifndef GPUSIM_TRUTH_H
#define GPUSIM_TRUTH_H

#include <stdbool.h>
#include <stdint.h>

#define GPUSIM_TRUTH_MAGIC 0x3148545552545047ull
#define GPUSIM_TRUTH_FUNCTIONS 1024	/* the driver and one runtime have about 500 implemented entries */
#define GPUSIM_TRUTH_SYNCS 131072	/* rings: the oldest records are overwritten, the counters are not */
#define GPUSIM_TRUTH_DRAINS 131072
#define GPUSIM_TRUTH_COLLECTIVES 65536
#define GPUSIM_TRUTH_KERNELS 1024

struct gpusim_truth_header {
	uint64_t magic;
	uint64_t functions;		/* used entries of the function table */
	uint64_t syncs;			/* records written so far, also those overwritten since */
	uint64_t drains;
	uint64_t collectives;
};

/*
 * One exported function: outer_* are calls that came from the application,
 * nested_* calls made inside another counted call of the same thread (a driver
 * call inside a runtime call). entered - returned are in flight.
 */
struct gpusim_truth_function {
	char name[56];
	char layer[8];			/* "runtime", "driver", "nccl" */
	uint64_t outer_entered;
	uint64_t outer_returned;
	uint64_t outer_ns;
	uint64_t outer_max_ns;
	uint64_t nested_entered;
	uint64_t nested_returned;
	uint64_t nested_ns;
	uint64_t errors;		/* returned neither success nor "not ready" */
};

/* One wait of the host for a device: synchronization, blocking copy, free. Not a launch that finds the queue full. */
struct gpusim_truth_sync {
	uint64_t sequence;		/* 1 + position among all records; written last */
	uint64_t stream;		/* handle as the caller sees it; 0: all streams of the device */
	int32_t pid;
	int32_t tid;
	int32_t device;
	uint32_t function;		/* the outermost call: index into the function table */
	int64_t enter_ns;		/* entry of that call */
	int64_t device_end_ns;		/* when the awaited work was done */
	int64_t return_ns;		/* return of that call, or where it went on after the wait; 0 while it waits */
};

/*
 * One sync: a wait after which a stream had nothing left to do. It closes an
 * sync interval that began at the return of the previous sync of the same stream.
 */
struct gpusim_truth_drain {
	uint64_t sequence;
	uint64_t stream;
	int32_t pid;
	int32_t tid;
	int32_t device;
	uint32_t function;
	uint64_t enqueues;		/* kernels, graphs, copies, memsets, collectives since that sync */
	int64_t first_enqueue_ns;	/* entry of the first of them */
	int64_t enter_ns;
	int64_t device_end_ns;
	int64_t return_ns;
};

/* One collective, send or receive that a rank has called. */
struct gpusim_truth_collective {
	uint64_t sequence;
	uint64_t comm;			/* handle */
	uint64_t comm_id;		/* equal on all its ranks */
	uint64_t nth;			/* of its kind (and peer) on this communicator, from 1 */
	uint64_t bytes;			/* count of the call times element size */
	int64_t enter_ns;
	int64_t return_ns;		/* when it was added, before its call returned */
	int32_t pid;
	int32_t tid;
	int32_t rank;
	int32_t ranks;
	int32_t type;			/* ncclDataType_t */
	int32_t reduce_op;		/* ncclRedOp_t, -1: none */
	int32_t root;			/* or peer, -1: none */
	int32_t is_grouped;		/* called between ncclGroupStart and ncclGroupEnd */
	uint32_t function;
	uint32_t pad;
};

/* Launches of all kernels with one name, by whichever call. */
struct gpusim_truth_kernel {
	char name[504];
	uint64_t launches;
};

struct gpusim_truth_file {
	struct gpusim_truth_header header;
	struct gpusim_truth_function function[GPUSIM_TRUTH_FUNCTIONS];
	struct gpusim_truth_sync sync[GPUSIM_TRUTH_SYNCS];
	struct gpusim_truth_drain drain[GPUSIM_TRUTH_DRAINS];
	struct gpusim_truth_collective collective[GPUSIM_TRUTH_COLLECTIVES];
	uint64_t kernels_lock;		/* 1: somebody looks for a name, or adds one */
	uint64_t kernels;		/* used entries of the table */
	struct gpusim_truth_kernel kernel[GPUSIM_TRUTH_KERNELS];
};

/* One exported entry of this library; the macros of api.h put them in one section. */
struct gpusim_entry {
	const char *name;
	void *exported;
	void *internal;			/* a second entry that has no symbol, or NULL */
	struct gpusim_truth_function *truth;	/* NULL: not recorded */
	uint32_t number;		/* its place in the function table, which each library maps elsewhere */
} __attribute__((aligned(64)));		/* the section is an array only if no compiler pads between its elements */

#define GPUSIM_PENDING 32

/* What a thread is in the middle of, in all libraries together; lives in libcuda. */
struct gpusim_thread {
	int depth;			/* open counted calls */
	int64_t enter_ns;		/* entry of the outermost */
	const struct gpusim_entry *outer;
	int pending;			/* records whose return_ns that call's return fills in */
	int64_t *return_ns[GPUSIM_PENDING];
};

struct gpusim_thread *gpusim_thread(void);

struct gpusim_call {
	struct gpusim_thread *thread;
	int64_t enter_ns;
};

/* Around the body of every counted function; leave passes @error on. */
struct gpusim_call gpusim_enter(const struct gpusim_entry *entry);
int gpusim_leave(const struct gpusim_entry *entry, struct gpusim_call call, int error);

/* Open the file, if there is to be one, and find the place of each of this library's entries in it. */
void gpusim_truth_open(const char *layer);

void gpusim_truth_sync(int device, uint64_t stream, int64_t device_end_ns);
void gpusim_truth_drain(int device, uint64_t stream, uint64_t enqueues, int64_t first_enqueue_ns,
			int64_t device_end_ns);

/*
 * The call goes on after its waits: their records end here, and what it enqueues from here on begins here. A copy from
 * pageable memory waits for its stream first.
 */
void gpusim_truth_go_on(void);

/* @what: all but sequence, pid, tid, function and the times. */
void gpusim_truth_collective(struct gpusim_truth_collective what);

/* One launch. @place: where the name was found last, kept by the caller; 0 at first. */
void gpusim_truth_launch(const char *name, uint64_t *place);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators and what ranks share. */
#ifndef GPUSIM_NCCL_H
#define GPUSIM_NCCL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "api.h"
#include "join.h"

#define MAX_RANKS 64
#define ROUNDS 64			/* on one stream ranks are never more than one round apart; several may differ more */
#define PEER_ROUNDS 16
#define UNIQUE_ID_BYTES 128
#define DATATYPES 12			/* ncclNumTypes */

enum {					/* ncclResult_t */
	NCCL_SUCCESS = 0,
	NCCL_UNHANDLED_CUDA_ERROR = 1,
	NCCL_SYSTEM_ERROR = 2,
	NCCL_INVALID_ARGUMENT = 4,
	NCCL_INVALID_USAGE = 5,
};

struct unique_id {			/* the path of the file that the ranks share */
	char path[UNIQUE_ID_BYTES];
};

struct split {
	_Atomic uint64_t sequence;
	int color, key;
};

struct shared {
	_Atomic int joined;
	struct split split[MAX_RANKS];
	struct join_cell collective[ROUNDS][MAX_RANKS];
	/* Written by the sender and the receiver of [from][to]. */
	struct join_cell send[MAX_RANKS][MAX_RANKS][PEER_ROUNDS];
	struct join_cell receive[MAX_RANKS][MAX_RANKS][PEER_ROUNDS];
};

struct comm {
	struct shared *shared;
	char path[UNIQUE_ID_BYTES];
	int rank, ranks, device;
	_Atomic int aborted;
	uint64_t collectives, splits;
	uint64_t sent[MAX_RANKS], received[MAX_RANKS];
	struct comm *next_free;
};

/*
 * Join the others of a communicator; waiting for them is separate, for groups.
 * Its memory is only ever used for communicators: work in flight points into it. The last one destroyed is the next
 * handle, as an allocator would have it.
 */
int comm_create(struct comm **comm, int ranks, const char *path, int rank);
void comm_wait(struct comm *comm);
void comm_destroy(struct comm *comm);

/* Begin and end of a group; operations outside one are a group of their own. */
int group_start(void);
int group_end(void);
int group_depth(void);
/* Wait for @comm at the end of the group; @out gets the handle then, unless it is NULL. */
int group_defer_wait(struct comm *comm, struct comm **out);

enum operation_kind {
	OPERATION_COLLECTIVE,
	OPERATION_SEND,
	OPERATION_RECEIVE,
};

/* One operation of the open group. */
struct operation {
	enum operation_kind kind;
	const char *kernel;		/* name of what runs on the device */
	struct comm *comm;
	void *stream;
	int peer;
	double bytes;			/* that pass the slowest link */
	uint64_t sequence;		/* which operation of its kind (and peer), from 1; set when added */
	struct gpusim_truth_collective truth;	/* what the caller asked for */
};

int group_add(struct operation operation);

/* The driver functions in use, found as a statically linked runtime finds them. */
struct nccl_driver {
	int (*get_device)(int *);
	int (*load)(void **, const void *, int *, void **, unsigned int, int *, void **, unsigned int);
	int (*get_kernel)(void **, void *, const char *);
	int (*launch)(const void *, void *, void **, void **);
};

const struct nccl_driver *nccl_driver(void);	/* NULL: there is no driver */

#endif

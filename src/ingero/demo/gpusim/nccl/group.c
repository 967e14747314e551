// SPDX-License-Identifier: Apache-2.0
/* Groups: what is called between start and end becomes one kernel per communicator and stream. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "knobs.h"
#include "nccl.h"

#define GROUP_OPERATIONS 512
#define GROUP_COMMS 64
#define LATENCY_NS 8000

static __thread int depth;
static __thread struct operation operations[GROUP_OPERATIONS];
static __thread int operation_count;
static __thread struct {
	struct comm *comm, **out;
} waiting[GROUP_COMMS];
static __thread int waiting_count;

int group_depth(void)
{
	return depth;
}

int group_start(void)
{
	depth++;
	return NCCL_SUCCESS;
}

int group_defer_wait(struct comm *comm, struct comm **out)
{
	if (waiting_count == GROUP_COMMS)
		return NCCL_INVALID_USAGE;
	waiting[waiting_count].comm = comm;
	waiting[waiting_count++].out = out;
	return NCCL_SUCCESS;
}

static uint64_t next_sequence(const struct operation *o)
{
	switch (o->kind) {
	case OPERATION_SEND:
		return ++o->comm->sent[o->peer];
	case OPERATION_RECEIVE:
		return ++o->comm->received[o->peer];
	default:
		return ++o->comm->collectives;
	}
}

static uint64_t id_of(const struct comm *comm)
{
	uint64_t id = 5381;

	for (const char *c = comm->path; *c; c++)
		id = id * 33 + (unsigned char)*c;
	return id;
}

static void tell(const struct operation *o)
{
	struct gpusim_truth_collective truth = o->truth;

	truth.comm = (uintptr_t)o->comm;
	truth.comm_id = id_of(o->comm);
	truth.nth = o->sequence;
	truth.rank = o->comm->rank;
	truth.ranks = o->comm->ranks;
	truth.is_grouped = depth > 1;
	gpusim_truth_collective(truth);
}

int group_add(struct operation operation)
{
	if (!operation.comm || operation.peer < 0 || operation.peer >= operation.comm->ranks)
		return NCCL_INVALID_ARGUMENT;
	if (operation.truth.type < 0 || operation.truth.type >= DATATYPES)
		return NCCL_INVALID_ARGUMENT;
	if (operation_count == GROUP_OPERATIONS)
		return NCCL_INVALID_USAGE;
	operation.sequence = next_sequence(&operation);
	operations[operation_count++] = operation;
	tell(&operation);
	return NCCL_SUCCESS;
}

/* What this rank publishes for an operation: that it has got there. */
static struct join_cell *own_cell(const struct operation *o)
{
	struct shared *s = o->comm->shared;
	int me = o->comm->rank;

	switch (o->kind) {
	case OPERATION_SEND:
		return &s->send[me][o->peer][o->sequence % PEER_ROUNDS];
	case OPERATION_RECEIVE:
		return &s->receive[o->peer][me][o->sequence % PEER_ROUNDS];
	default:
		return &s->collective[o->sequence % ROUNDS][me];
	}
}

/* What it waits for: @i-th of partners(). */
static struct join_cell *partner_cell(const struct operation *o, int i)
{
	struct shared *s = o->comm->shared;
	int me = o->comm->rank;

	switch (o->kind) {
	case OPERATION_SEND:
		return &s->receive[me][o->peer][o->sequence % PEER_ROUNDS];
	case OPERATION_RECEIVE:
		return &s->send[o->peer][me][o->sequence % PEER_ROUNDS];
	default:
		return &s->collective[o->sequence % ROUNDS][i < me ? i : i + 1];
	}
}

static int partners(const struct operation *o)
{
	return o->kind == OPERATION_COLLECTIVE ? o->comm->ranks - 1 : 1;
}

static bool same_kernel(const struct operation *a, const struct operation *b)
{
	return a->comm == b->comm && a->stream == b->stream;
}

/* Sending and receiving go in opposite directions of a link, at the same time. */
static int64_t duration_ns(const struct operation *first, const struct operation *end)
{
	double out = 0, in = 0;

	for (const struct operation *o = first; o < end; o++) {
		if (!same_kernel(o, first))
			continue;
		if (o->kind == OPERATION_RECEIVE)
			in += o->bytes;
		else
			out += o->bytes;
	}
	return LATENCY_NS + (int64_t)((out > in ? out : in) / gpusim_knobs(first->comm->device)->nvlink_gbps);
}

/* Everything in the group on the stream of @first becomes one join. */
static struct join *fuse(const struct operation *first, const struct operation *end)
{
	size_t points = 0;
	struct join *join;

	for (const struct operation *o = first; o < end; o++)
		points += same_kernel(o, first) ? 1 + partners(o) : 0;
	join = calloc(1, sizeof(*join) + points * sizeof(join->point[0]));
	if (!join)
		abort();
	join->aborted = &first->comm->aborted;
	join->duration_ns = duration_ns(first, end);
	for (const struct operation *o = first; o < end; o++)
		if (same_kernel(o, first))
			join->point[join->points++] = (struct join_point){ own_cell(o), o->sequence };
	join->mine = join->points;
	for (const struct operation *o = first; o < end; o++)
		for (int i = 0; same_kernel(o, first) && i < partners(o); i++)
			join->point[join->points++] = (struct join_point){ partner_cell(o, i), o->sequence };
	return join;
}

struct launch_config {			/* CUlaunchConfig */
	unsigned int grid[3], block[3], shared_bytes;
	void *stream, *attributes;
	unsigned int attribute_count;
};

static void *library;

static void load_library(void)
{
	nccl_driver()->load(&library, "nccl", NULL, NULL, 0, NULL, NULL, 0);
}

static int launch(const struct operation *first, const struct operation *end)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct launch_config config = { { 16, 1, 1 }, { 512, 1, 1 }, 0, first->stream, NULL, 0 };
	struct join *join;
	void *kernel, *params[1] = { &join };

	pthread_once(&once, load_library);
	if (!library || nccl_driver()->get_kernel(&kernel, library, first->kernel))
		return NCCL_UNHANDLED_CUDA_ERROR;
	join = fuse(first, end);
	return nccl_driver()->launch(&config, kernel, params, NULL) ? NCCL_UNHANDLED_CUDA_ERROR : NCCL_SUCCESS;
}

static bool is_first_of_kernel(const struct operation *o)
{
	for (const struct operation *before = operations; before < o; before++)
		if (same_kernel(before, o))
			return false;
	return true;
}

int group_end(void)
{
	const struct operation *end = operations + operation_count;
	int error = NCCL_SUCCESS;

	if (!depth)
		return NCCL_INVALID_USAGE;
	if (--depth)
		return NCCL_SUCCESS;
	for (int i = 0; i < waiting_count; i++) {
		comm_wait(waiting[i].comm);
		if (waiting[i].out)
			*waiting[i].out = waiting[i].comm;
	}
	waiting_count = 0;
	for (const struct operation *o = operations; o < end && !error; o++)
		if (is_first_of_kernel(o))
			error = launch(o, end);
	operation_count = 0;
	return error;
}

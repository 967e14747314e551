// SPDX-License-Identifier: Apache-2.0
/* The public functions. Each name is a weak alias of the same name with a "p" in front, at one address. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "knobs.h"
#include "nccl.h"

#define VERSION 23203

#define WEAK_ALIAS(name) __attribute__((weak, alias(name), visibility("default")))

/* Counted under the public name: a probe has one hit per address. */
#define NCCL(name, params, args)					\
	static int do_##name params;					\
	EXPORT int p##name params;					\
	API_ENTRY(name, p##name, NULL)					\
	EXPORT int p##name params { API_TIMED(name, do_##name args) }	\
	int name params WEAK_ALIAS("p" #name);				\
	static int do_##name params

NCCL(ncclGetVersion, (int *version), (version))
{
	*version = VERSION;
	return NCCL_SUCCESS;
}

static void make_id(struct unique_id *id)
{
	static _Atomic int count;

	memset(id, 0, sizeof(*id));
	snprintf(id->path, sizeof(id->path), "/dev/shm/gpusim-nccl-%d-%lld-%d", getpid(), (long long)now_ns(),
		 count++);
}

NCCL(ncclGetUniqueId, (struct unique_id *id), (id))
{
	make_id(id);
	return NCCL_SUCCESS;
}

static int init_rank(struct comm **comm, int ranks, const char *path, int rank)
{
	int error = comm_create(comm, ranks, path, rank);

	if (error)
		return error;
	if (group_depth())
		return group_defer_wait(*comm, NULL);
	comm_wait(*comm);
	return NCCL_SUCCESS;
}

/* Made from another communicator: unlike above, the handle is there only when all is done. */
static int init_child(struct comm **out, int ranks, const char *path, int rank)
{
	struct comm *comm;
	int error = comm_create(&comm, ranks, path, rank);

	*out = NULL;
	if (error)
		return error;
	if (group_depth())
		return group_defer_wait(comm, out);
	comm_wait(comm);
	*out = comm;
	return NCCL_SUCCESS;
}

NCCL(ncclCommInitRank, (struct comm **comm, int ranks, struct unique_id id, int rank), (comm, ranks, id, rank))
{
	return init_rank(comm, ranks, id.path, rank);
}

NCCL(ncclCommInitRankConfig, (struct comm **comm, int ranks, struct unique_id id, int rank, const void *config),
     (comm, ranks, id, rank, config))
{
	return init_rank(comm, ranks, id.path, rank);
}

NCCL(ncclCommInitAll, (struct comm **comms, int count, const int *devices), (comms, count, devices))
{
	struct unique_id id;
	int error = NCCL_SUCCESS;

	make_id(&id);
	for (int i = 0; i < count && !error; i++) {
		error = comm_create(&comms[i], count, id.path, i);
		if (!error)
			comms[i]->device = devices ? devices[i] : i;
	}
	for (int i = 0; i < count && !error; i++)
		comm_wait(comms[i]);
	return error;
}

#define NO_COLOR -1

/* Everybody writes its color and key, waits for the others, and finds the same new ranks. */
NCCL(ncclCommSplit, (struct comm *comm, int color, int key, struct comm **out, const void *config),
     (comm, color, key, out, config))
{
	struct split *mine = &comm->shared->split[comm->rank];
	uint64_t sequence = ++comm->splits;
	char path[UNIQUE_ID_BYTES + 32];
	int ranks = 0, rank = 0;

	mine->color = color;
	mine->key = key;
	mine->sequence = sequence;
	*out = NULL;
	for (int r = 0; r < comm->ranks; r++) {
		const struct split *other = &comm->shared->split[r];

		while (other->sequence < sequence && !comm->aborted)
			usleep(100);
		if (other->color != color)
			continue;
		ranks++;
		if (other->key < key || (other->key == key && r < comm->rank))
			rank++;
	}
	if (color == NO_COLOR)
		return NCCL_SUCCESS;
	snprintf(path, sizeof(path), "%s-%llu-%d", comm->path, (unsigned long long)sequence, color);
	return init_child(out, ranks, path, rank);
}

NCCL(ncclCommInitRankScalable,
     (struct comm **comm, int ranks, int rank, int ids, const struct unique_id *id, const void *config),
     (comm, ranks, rank, ids, id, config))
{
	return ids > 0 ? init_rank(comm, ranks, id[0].path, rank) : NCCL_INVALID_ARGUMENT;
}

NCCL(ncclCommShrink,
     (struct comm *comm, const int *excluded, int count, struct comm **out, const void *config, int flags),
     (comm, excluded, count, out, config, flags))
{
	char path[UNIQUE_ID_BYTES + 32];
	int rank = comm->rank;

	for (int i = 0; i < count; i++)
		if (excluded[i] < comm->rank)
			rank--;
	snprintf(path, sizeof(path), "%s-%llu-shrunk", comm->path, (unsigned long long)++comm->splits);
	return init_child(out, comm->ranks - count, path, rank);
}

NCCL(ncclCommDestroy, (struct comm *comm), (comm))
{
	comm_destroy(comm);
	return NCCL_SUCCESS;
}

NCCL(ncclCommFinalize, (struct comm *comm), (comm))
{
	return NCCL_SUCCESS;
}

NCCL(ncclCommAbort, (struct comm *comm), (comm))
{
	comm->aborted = 1;
	return NCCL_SUCCESS;
}

NCCL(ncclCommCount, (struct comm *comm, int *count), (comm, count))
{
	*count = comm->ranks;
	return NCCL_SUCCESS;
}

NCCL(ncclCommUserRank, (struct comm *comm, int *rank), (comm, rank))
{
	*rank = comm->rank;
	return NCCL_SUCCESS;
}

NCCL(ncclCommCuDevice, (struct comm *comm, int *device), (comm, device))
{
	*device = comm->device;
	return NCCL_SUCCESS;
}

NCCL(ncclCommGetAsyncError, (struct comm *comm, int *error), (comm, error))
{
	*error = gpusim_knobs(comm->device)->xid ? NCCL_UNHANDLED_CUDA_ERROR : NCCL_SUCCESS;
	return NCCL_SUCCESS;
}

EXPORT const char *pncclGetErrorString(int error)
{
	return error ? "simulated NCCL error" : "no error";
}

const char *ncclGetErrorString(int error) WEAK_ALIAS("pncclGetErrorString");

EXPORT const char *pncclGetLastError(struct comm *comm)
{
	return "";
}

const char *ncclGetLastError(struct comm *comm) WEAK_ALIAS("pncclGetLastError");

NCCL(ncclGroupStart, (void), ())
{
	return group_start();
}

NCCL(ncclGroupEnd, (void), ())
{
	return group_end();
}

static double type_bytes(int type)
{
	static const int bytes[DATATYPES] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };

	return type >= 0 && type < DATATYPES ? bytes[type] : 0;
}

static int run(struct operation operation)
{
	int error, end_error;

	group_start();
	error = group_add(operation);
	end_error = group_end();
	return error ? error : end_error;
}

/* Share of the data that passes each link of a ring. */
static double ring(const struct comm *comm)
{
	return (comm->ranks - 1.0) / comm->ranks;
}

static struct gpusim_truth_collective asked(size_t count, int type, int op, int root)
{
	return (struct gpusim_truth_collective){
		.bytes = count * type_bytes(type), .type = type, .reduce_op = op, .root = root,
	};
}

#define NO_OP -1
#define NO_ROOT -1

static int collective(struct comm *comm, void *stream, double bytes, const char *kernel,
		      struct gpusim_truth_collective truth)
{
	return run((struct operation){
		.kind = OPERATION_COLLECTIVE, .kernel = kernel, .comm = comm, .stream = stream, .bytes = bytes,
		.truth = truth,
	});
}

NCCL(ncclAllReduce, (const void *from, void *to, size_t count, int type, int op, struct comm *comm, void *stream),
     (from, to, count, type, op, comm, stream))
{
	return collective(comm, stream, 2 * ring(comm) * count * type_bytes(type),
			  "ncclDevKernel_AllReduce_Sum_f32_RING_LL#join", asked(count, type, op, NO_ROOT));
}

NCCL(ncclReduceScatter,
     (const void *from, void *to, size_t count, int type, int op, struct comm *comm, void *stream),
     (from, to, count, type, op, comm, stream))
{
	return collective(comm, stream, ring(comm) * comm->ranks * count * type_bytes(type),
			  "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL#join", asked(count, type, op, NO_ROOT));
}

NCCL(ncclAllGather, (const void *from, void *to, size_t count, int type, struct comm *comm, void *stream),
     (from, to, count, type, comm, stream))
{
	return collective(comm, stream, ring(comm) * comm->ranks * count * type_bytes(type),
			  "ncclDevKernel_AllGather_RING_LL#join", asked(count, type, NO_OP, NO_ROOT));
}

NCCL(ncclReduce,
     (const void *from, void *to, size_t count, int type, int op, int root, struct comm *comm, void *stream),
     (from, to, count, type, op, root, comm, stream))
{
	return collective(comm, stream, count * type_bytes(type), "ncclDevKernel_Reduce_Sum_f32_RING_LL#join",
			  asked(count, type, op, root));
}

NCCL(ncclBroadcast, (const void *from, void *to, size_t count, int type, int root, struct comm *comm, void *stream),
     (from, to, count, type, root, comm, stream))
{
	return collective(comm, stream, count * type_bytes(type), "ncclDevKernel_Broadcast_RING_LL#join",
			  asked(count, type, NO_OP, root));
}

NCCL(ncclBcast, (void *data, size_t count, int type, int root, struct comm *comm, void *stream),
     (data, count, type, root, comm, stream))
{
	return collective(comm, stream, count * type_bytes(type), "ncclDevKernel_Broadcast_RING_LL#join",
			  asked(count, type, NO_OP, root));
}

NCCL(ncclAlltoAll, (const void *from, void *to, size_t count, int type, struct comm *comm, void *stream),
     (from, to, count, type, comm, stream))
{
	return collective(comm, stream, ring(comm) * comm->ranks * count * type_bytes(type),
			  "ncclDevKernel_SendRecv#join", asked(count, type, NO_OP, NO_ROOT));
}

NCCL(ncclGather, (const void *from, void *to, size_t count, int type, int root, struct comm *comm, void *stream),
     (from, to, count, type, root, comm, stream))
{
	return collective(comm, stream, ring(comm) * comm->ranks * count * type_bytes(type),
			  "ncclDevKernel_SendRecv#join", asked(count, type, NO_OP, root));
}

NCCL(ncclScatter, (const void *from, void *to, size_t count, int type, int root, struct comm *comm, void *stream),
     (from, to, count, type, root, comm, stream))
{
	return collective(comm, stream, ring(comm) * comm->ranks * count * type_bytes(type),
			  "ncclDevKernel_SendRecv#join", asked(count, type, NO_OP, root));
}

static int peer(enum operation_kind kind, struct comm *comm, void *stream, int rank,
		struct gpusim_truth_collective truth)
{
	return run((struct operation){
		.kind = kind, .kernel = "ncclDevKernel_SendRecv#join", .comm = comm, .stream = stream,
		.bytes = truth.bytes, .peer = rank, .truth = truth,
	});
}

NCCL(ncclSend, (const void *from, size_t count, int type, int rank, struct comm *comm, void *stream),
     (from, count, type, rank, comm, stream))
{
	return peer(OPERATION_SEND, comm, stream, rank, asked(count, type, NO_OP, rank));
}

NCCL(ncclRecv, (void *to, size_t count, int type, int rank, struct comm *comm, void *stream),
     (to, count, type, rank, comm, stream))
{
	return peer(OPERATION_RECEIVE, comm, stream, rank, asked(count, type, NO_OP, rank));
}

NCCL(ncclCommRegister, (struct comm *comm, void *memory, size_t bytes, void **handle), (comm, memory, bytes, handle))
{
	*handle = memory;
	return NCCL_SUCCESS;
}

NCCL(ncclCommDeregister, (struct comm *comm, void *handle), (comm, handle))
{
	return NCCL_SUCCESS;
}

NCCL(ncclRedOpCreatePreMulSum, (int *op, void *scalar, int type, int residence, struct comm *comm),
     (op, scalar, type, residence, comm))
{
	*op = 5;			/* the first user-defined one */
	return NCCL_SUCCESS;
}

NCCL(ncclRedOpDestroy, (int op, struct comm *comm), (op, comm))
{
	return NCCL_SUCCESS;
}

// SPDX-License-Identifier: Apache-2.0
/* How ranks find each other: through one file per communicator. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bridge.h"
#include "nccl.h"
#include "shared_file.h"

#define JOIN_POLL_US 500

static struct nccl_driver driver;
static const struct gpusim_bridge *bridge;
static int has_driver;

static void load_driver(void)
{
	int (*get)(const char *, void **, int, uint64_t, int *);
	int (*get_table)(const void **, const void *) = NULL;
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	get = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
	if (!get)
		return;
	get("cuGetExportTable", (void **)&get_table, 3000, 0, NULL);
	get("cuCtxGetDevice", (void **)&driver.get_device, 2000, 0, NULL);
	get("cuLibraryLoadData", (void **)&driver.load, 12000, 0, NULL);
	get("cuLibraryGetKernel", (void **)&driver.get_kernel, 12000, 0, NULL);
	get("cuLaunchKernelEx", (void **)&driver.launch, 11060, 0, NULL);
	if (get_table)
		get_table((const void **)&bridge, GPUSIM_BRIDGE_UUID);
	has_driver = driver.launch != NULL;
}

const struct nccl_driver *nccl_driver(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load_driver);
	return has_driver ? &driver : NULL;
}

struct gpusim_thread *gpusim_thread(void)
{
	static __thread struct gpusim_thread without_driver, *thread;

	if (!thread)
		thread = nccl_driver() && bridge ? bridge->thread() : &without_driver;
	return thread;
}

__attribute__((constructor)) static void open_truth(void)
{
	gpusim_truth_open("nccl");
}

static pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;
static struct comm *free_comms;

static struct comm *comm_memory(void)
{
	struct comm *comm;

	pthread_mutex_lock(&free_lock);
	comm = free_comms;
	if (comm)
		free_comms = comm->next_free;
	pthread_mutex_unlock(&free_lock);
	if (comm)
		memset(comm, 0, sizeof(*comm));
	return comm ? comm : calloc(1, sizeof(*comm));
}

void comm_destroy(struct comm *comm)
{
	if (comm->aborted)
		return;			/* work in flight still looks at that */
	pthread_mutex_lock(&free_lock);
	comm->next_free = free_comms;
	free_comms = comm;
	pthread_mutex_unlock(&free_lock);
}

int comm_create(struct comm **out, int ranks, const char *path, int rank)
{
	struct comm *comm;

	if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks)
		return NCCL_INVALID_ARGUMENT;
	comm = comm_memory();
	if (!comm)
		return NCCL_SYSTEM_ERROR;
	comm->rank = rank;
	comm->ranks = ranks;
	snprintf(comm->path, sizeof(comm->path), "%s", path);
	comm->shared = gpusim_map_file(path, sizeof(*comm->shared), NULL, NULL);
	if (!comm->shared)
		return NCCL_SYSTEM_ERROR;
	if (!nccl_driver() || nccl_driver()->get_device(&comm->device))
		return NCCL_UNHANDLED_CUDA_ERROR;
	comm->shared->joined++;
	*out = comm;
	return NCCL_SUCCESS;
}

void comm_wait(struct comm *comm)
{
	while (comm->shared->joined < comm->ranks && !comm->aborted)
		usleep(JOIN_POLL_US);
	if (!comm->rank)		/* everybody has mapped it */
		unlink(comm->path);
}

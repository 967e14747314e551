// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "allocation.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "device.h"
#include "error.h"

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static void *tree;			/* of struct allocation, by address; disjoint */

/* Ranges that overlap are equal, so that any address inside finds its allocation. */
static int compare(const void *left, const void *right)
{
	const struct allocation *a = left, *b = right;

	if (a->address + a->bytes <= b->address)
		return -1;
	return b->address + b->bytes <= a->address;
}

static int insert(struct allocation value)
{
	struct allocation *allocation = malloc(sizeof(*allocation)), **found;
	bool is_new;

	if (!allocation)
		return ERROR_OUT_OF_MEMORY;
	*allocation = value;
	pthread_rwlock_wrlock(&lock);
	found = tsearch(allocation, &tree, compare);
	is_new = found && *found == allocation;		/* the next tdelete may put another one in this place */
	pthread_rwlock_unlock(&lock);
	if (is_new)
		return SUCCESS;
	free(allocation);
	return ERROR_INVALID_VALUE;
}

/* Nothing is resident until it is touched: a device may have more memory than the host. */
static void *reserve(size_t bytes, enum allocation_kind kind)
{
	int protection = kind == ALLOCATION_RESERVED ? PROT_NONE : PROT_READ | PROT_WRITE;
	void *memory = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

int allocation_create(uint64_t *address, size_t bytes, enum allocation_kind kind, int device)
{
	struct allocation allocation = { .bytes = bytes, .kind = kind, .device = device };
	int error;

	*address = 0;
	if (!bytes)
		return ERROR_INVALID_VALUE;
	if (kind == ALLOCATION_DEVICE && !gpusim_device_take_memory(device, bytes))
		return ERROR_OUT_OF_MEMORY;
	allocation.address = (uintptr_t)reserve(bytes, kind);
	error = allocation.address ? insert(allocation) : ERROR_OUT_OF_MEMORY;
	if (!error)
		*address = allocation.address;
	else if (kind == ALLOCATION_DEVICE)
		gpusim_device_give_memory(device, bytes);
	return error;
}

int allocation_borrow(void *memory, size_t bytes)
{
	if (!memory || !bytes)
		return ERROR_INVALID_VALUE;
	return insert((struct allocation){
		.address = (uintptr_t)memory, .bytes = bytes, .kind = ALLOCATION_HOST, .is_borrowed = true,
	});
}

int allocation_destroy(uint64_t address, enum allocation_kind kind)
{
	struct allocation key = { .address = address, .bytes = 1 }, *found, **node;

	pthread_rwlock_wrlock(&lock);
	node = tfind(&key, &tree, compare);
	found = node ? *node : NULL;
	if (!found || found->address != address || (kind && found->kind != kind)) {
		pthread_rwlock_unlock(&lock);
		return ERROR_INVALID_VALUE;
	}
	tdelete(found, &tree, compare);
	pthread_rwlock_unlock(&lock);
	if (found->kind == ALLOCATION_DEVICE)
		gpusim_device_give_memory(found->device, found->bytes);
	if (!found->is_borrowed)
		munmap((void *)(uintptr_t)found->address, found->bytes);
	free(found);
	return SUCCESS;
}

struct allocation allocation_find(uint64_t address)
{
	struct allocation key = { .address = address, .bytes = 1 }, result = { 0 }, **node;

	pthread_rwlock_rdlock(&lock);
	node = tfind(&key, &tree, compare);
	if (node)
		result = **node;
	pthread_rwlock_unlock(&lock);
	return result;
}

// SPDX-License-Identifier: Apache-2.0
/* Allocation: plain, pooled, pinned, managed, and virtual memory management. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "allocation.h"
#include "context.h"
#include "knobs.h"
#include "wait.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23		/* Linux 5.14; older ones refuse it, which only leaves pages to be touched later */
#endif

#define ASYNC_ALLOCATION_US 2		/* a pool that already has the memory */
#define GRANULARITY (2u << 20)

API(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes), (free_bytes, total_bytes))
{
	NEED_CONTEXT(context);
	uint64_t used = gpusim_device_memory_used(context->device);

	*total_bytes = gpusim_knobs(context->device)->mem_limit_bytes;
	*free_bytes = used < *total_bytes ? *total_bytes - used : 0;
	return SUCCESS;
}

static int allocate(uint64_t *address, size_t bytes, enum allocation_kind kind)
{
	NEED_CONTEXT(context);

	burn_us(gpusim_knobs(context->device)->malloc_us);
	return allocation_create(address, bytes, kind, context->device);
}

API(cuMemAlloc_v2, (uint64_t *address, size_t bytes), (address, bytes))
{
	return allocate(address, bytes, ALLOCATION_DEVICE);
}

API(cuMemAllocPitch_v2,
    (uint64_t *address, size_t *pitch, size_t width, size_t height, unsigned int element_bytes),
    (address, pitch, width, height, element_bytes))
{
	*pitch = (width + 511) & ~(size_t)511;
	return allocate(address, *pitch * height, ALLOCATION_DEVICE);
}

API(cuMemAllocManaged, (uint64_t *address, size_t bytes, unsigned int flags), (address, bytes, flags))
{
	return allocate(address, bytes, ALLOCATION_MANAGED);
}

/* Memory in use cannot go away: freeing waits for the whole device. */
API(cuMemFree_v2, (uint64_t address), (address))
{
	NEED_CONTEXT(context);
	int error;

	if (!address)
		return SUCCESS;
	error = wait_for_context(context, false);
	return error ? error : allocation_destroy(address, ALLOCATION_NONE);
}

static int pinned(void **memory, size_t bytes)
{
	uint64_t address;
	int error = allocate(&address, bytes, ALLOCATION_HOST);

	*memory = (void *)(uintptr_t)address;
	if (!error)			/* pinned means resident */
		madvise(*memory, bytes, MADV_POPULATE_WRITE);
	return error;
}

API(cuMemHostAlloc, (void **memory, size_t bytes, unsigned int flags), (memory, bytes, flags))
{
	return pinned(memory, bytes);
}

API(cuMemAllocHost_v2, (void **memory, size_t bytes), (memory, bytes))
{
	return pinned(memory, bytes);
}

API(cuMemFreeHost, (void *memory), (memory))
{
	NEED_CONTEXT(context);
	int error;

	if (!memory)
		return SUCCESS;
	error = wait_for_context(context, false);
	return error ? error : allocation_destroy((uintptr_t)memory, ALLOCATION_HOST);
}

API(cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned int flags), (memory, bytes, flags))
{
	return allocation_borrow(memory, bytes);
}

API(cuMemHostUnregister, (void *memory), (memory))
{
	return allocation_destroy((uintptr_t)memory, ALLOCATION_HOST);
}

API(cuMemHostGetDevicePointer_v2, (uint64_t *address, void *memory, unsigned int flags), (address, memory, flags))
{
	*address = (uintptr_t)memory;
	return SUCCESS;
}

/* Stream-ordered: neither side waits for the device. */
static int allocate_async(uint64_t *address, size_t bytes)
{
	NEED_CONTEXT(context);

	burn_us(ASYNC_ALLOCATION_US);
	return allocation_create(address, bytes, ALLOCATION_DEVICE, context->device);
}

API_STREAM(cuMemAllocAsync, _ptsz, (uint64_t *address, size_t bytes, void *handle), (address, bytes, handle))
{
	return allocate_async(address, bytes);
}

API_STREAM(cuMemAllocFromPoolAsync, _ptsz, (uint64_t *address, size_t bytes, void *pool, void *handle),
	   (address, bytes, pool, handle))
{
	return allocate_async(address, bytes);
}

API_STREAM(cuMemFreeAsync, _ptsz, (uint64_t address, void *handle), (address, handle))
{
	return allocation_destroy(address, ALLOCATION_DEVICE);
}

/* Pools hold nothing of their own. */
static int pool;

API(cuDeviceGetDefaultMemPool, (void **out, int device), (out, device))
{
	*out = &pool;
	return driver_physical(device) < 0 ? ERROR_INVALID_DEVICE : SUCCESS;
}

API(cuDeviceGetMemPool, (void **out, int device), (out, device))
{
	*out = &pool;
	return driver_physical(device) < 0 ? ERROR_INVALID_DEVICE : SUCCESS;
}

API(cuMemPoolCreate, (void **out, const void *properties), (out, properties))
{
	*out = &pool;
	return SUCCESS;
}

API(cuMemPoolDestroy, (void *which), (which))
{
	return SUCCESS;
}

API(cuMemPoolTrimTo, (void *which, size_t keep_bytes), (which, keep_bytes))
{
	return SUCCESS;
}

API(cuMemPoolSetAttribute, (void *which, int attribute, void *value), (which, attribute, value))
{
	return SUCCESS;
}

API(cuMemPoolGetAttribute, (void *which, int attribute, uint64_t *value), (which, attribute, value))
{
	*value = 0;
	return SUCCESS;
}

/*
 * Virtual memory management: memory is counted when created, addresses become usable when mapped. It goes with the last
 * of its handle and its mappings.
 */
struct physical {
	size_t bytes;
	int device;
	int holds;
};

struct mapping {
	uint64_t address;
	size_t bytes;
	struct physical *memory;
	struct mapping *next;
};

static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *mappings;

static void let_go(struct physical *memory)
{
	if (__atomic_sub_fetch(&memory->holds, 1, __ATOMIC_ACQ_REL))
		return;
	gpusim_device_give_memory(memory->device, memory->bytes);
	free(memory);
}

static void note_mapping(uint64_t address, size_t bytes, struct physical *memory)
{
	struct mapping *mapping = malloc(sizeof(*mapping));

	if (!mapping)
		abort();
	__atomic_add_fetch(&memory->holds, 1, __ATOMIC_ACQ_REL);
	pthread_mutex_lock(&mappings_lock);
	*mapping = (struct mapping){ .address = address, .bytes = bytes, .memory = memory, .next = mappings };
	mappings = mapping;
	pthread_mutex_unlock(&mappings_lock);
}

static void end_mappings(uint64_t address, size_t bytes)
{
	pthread_mutex_lock(&mappings_lock);
	for (struct mapping **at = &mappings, *one; (one = *at);) {
		if (one->address < address || one->address + one->bytes > address + bytes) {
			at = &one->next;
			continue;
		}
		*at = one->next;
		let_go(one->memory);
		free(one);
	}
	pthread_mutex_unlock(&mappings_lock);
}

API(cuMemGetAllocationGranularity, (size_t *bytes, const void *properties, int option), (bytes, properties, option))
{
	*bytes = GRANULARITY;
	return SUCCESS;
}

API(cuMemAddressReserve,
    (uint64_t *address, size_t bytes, size_t alignment, uint64_t hint, unsigned long long flags),
    (address, bytes, alignment, hint, flags))
{
	return allocation_create(address, bytes, ALLOCATION_RESERVED, 0);
}

API(cuMemAddressFree, (uint64_t address, size_t bytes), (address, bytes))
{
	return allocation_destroy(address, ALLOCATION_RESERVED);
}

API(cuMemCreate, (struct physical **out, size_t bytes, const void *properties, unsigned long long flags),
    (out, bytes, properties, flags))
{
	NEED_CONTEXT(context);

	burn_us(gpusim_knobs(context->device)->malloc_us);
	if (bytes % GRANULARITY)
		return ERROR_INVALID_VALUE;
	if (!gpusim_device_take_memory(context->device, bytes))
		return ERROR_OUT_OF_MEMORY;
	*out = malloc(sizeof(**out));
	if (!*out)
		abort();
	**out = (struct physical){ .bytes = bytes, .device = context->device, .holds = 1 };
	return SUCCESS;
}

API(cuMemRelease, (struct physical *memory), (memory))
{
	if (!memory)
		return ERROR_INVALID_VALUE;
	let_go(memory);
	return SUCCESS;
}

static int protect(uint64_t address, size_t bytes, int protection)
{
	struct allocation range = allocation_find(address);

	if (range.kind != ALLOCATION_RESERVED || address + bytes > range.address + range.bytes)
		return ERROR_INVALID_VALUE;
	return mprotect((void *)(uintptr_t)address, bytes, protection) ? ERROR_INVALID_VALUE : SUCCESS;
}

API(cuMemMap, (uint64_t address, size_t bytes, size_t offset, struct physical *memory, unsigned long long flags),
    (address, bytes, offset, memory, flags))
{
	int error;

	if (!memory || offset + bytes > memory->bytes)
		return ERROR_INVALID_VALUE;
	error = protect(address, bytes, PROT_READ | PROT_WRITE);
	if (!error)
		note_mapping(address, bytes, memory);
	return error;
}

API(cuMemUnmap, (uint64_t address, size_t bytes), (address, bytes))
{
	int error = protect(address, bytes, PROT_NONE);

	if (!error)
		end_mappings(address, bytes);
	return error;
}

API(cuMemSetAccess, (uint64_t address, size_t bytes, const void *access, size_t count),
    (address, bytes, access, count))
{
	return allocation_find(address).kind == ALLOCATION_RESERVED ? SUCCESS : ERROR_INVALID_VALUE;
}

API(cuMemGetAddressRange_v2, (uint64_t *base, size_t *bytes, uint64_t address), (base, bytes, address))
{
	struct allocation allocation = allocation_find(address);

	if (!allocation.kind)
		return ERROR_NOT_FOUND;
	if (base)
		*base = allocation.address;
	if (bytes)
		*bytes = allocation.bytes;
	return SUCCESS;
}

#define ATTRIBUTE_MEMORY_TYPE 2
#define ATTRIBUTE_DEVICE_POINTER 3
#define ATTRIBUTE_HOST_POINTER 4
#define ATTRIBUTE_IS_MANAGED 8
#define ATTRIBUTE_DEVICE_ORDINAL 9

static int pointer_attribute(void *value, int attribute, uint64_t address)
{
	struct allocation allocation = allocation_find(address);

	if (!allocation.kind)
		return ERROR_INVALID_VALUE;
	switch (attribute) {
	case ATTRIBUTE_MEMORY_TYPE:
		*(int *)value = allocation.kind == ALLOCATION_HOST ? ALLOCATION_HOST : ALLOCATION_DEVICE;
		return SUCCESS;
	case ATTRIBUTE_DEVICE_POINTER:
	case ATTRIBUTE_HOST_POINTER:
		*(uint64_t *)value = address;
		return SUCCESS;
	case ATTRIBUTE_IS_MANAGED:
		*(int *)value = allocation.kind == ALLOCATION_MANAGED;
		return SUCCESS;
	case ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)value = driver_ordinal(allocation.device);
		return SUCCESS;
	}
	return ERROR_NOT_SUPPORTED;
}

API(cuPointerGetAttribute, (void *value, int attribute, uint64_t address), (value, attribute, address))
{
	return pointer_attribute(value, attribute, address);
}

API(cuPointerGetAttributes, (unsigned int count, int *attributes, void **values, uint64_t address),
    (count, attributes, values, address))
{
	for (unsigned int i = 0; i < count; i++)
		pointer_attribute(values[i], attributes[i], address);
	return SUCCESS;
}

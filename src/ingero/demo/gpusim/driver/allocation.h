/* SPDX-License-Identifier: Apache-2.0 */
/* What is allocated where: device, pinned and managed memory, reserved addresses. */
#ifndef GPUSIM_ALLOCATION_H
#define GPUSIM_ALLOCATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum allocation_kind {			/* the numbers are CUmemorytype's */
	ALLOCATION_NONE = 0,
	ALLOCATION_HOST = 1,		/* pinned */
	ALLOCATION_DEVICE = 2,
	ALLOCATION_MANAGED = 4,
	ALLOCATION_RESERVED = 5,	/* addresses without memory of their own */
};

struct allocation {
	uint64_t address;
	size_t bytes;
	enum allocation_kind kind;
	int device;
	bool is_borrowed;		/* the application's memory, only registered */
};

/* Device memory counts against the device's limit. Returns a CUDA error. */
int allocation_create(uint64_t *address, size_t bytes, enum allocation_kind kind, int device);

/* Note memory of the application's own as pinned. */
int allocation_borrow(void *memory, size_t bytes);

/* @kind ALLOCATION_NONE accepts any. */
int allocation_destroy(uint64_t address, enum allocation_kind kind);

/* The allocation that contains @address; its kind is ALLOCATION_NONE if there is none. */
struct allocation allocation_find(uint64_t address);

#endif

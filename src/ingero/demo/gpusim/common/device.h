/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices, shared by all processes through one file ($GPUSIM_DEVICE_SHM,
 * or $GPUSIM_CTL with ".device" appended, else memory of this process tree).
 *
 * A device has no thread: it is arithmetic on timestamps. Work that a process
 * hands over gets its end at once, from the time it could start and from what
 * the other processes have handed over, so that a host that is short of CPU
 * never slows the device. Every process writes only its own slot, except that
 * it adds to the debt of others, atomically: no lock exists that a process
 * could die with.
 */
#ifndef GPUSIM_DEVICE_H
#define GPUSIM_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPUSIM_MAX_PROCESSES 64		/* on one device at the same time */

enum gpusim_engine {
	ENGINE_COMPUTE,
	ENGINE_COPY_IN,			/* host to device */
	ENGINE_COPY_OUT,		/* device to host */
	ENGINES,
};

/* How many devices there are: $GPUSIM_DEVICES, 1 by default. */
int gpusim_device_count(void);

/* Take a slot of @device for this process. False if there is none free. */
bool gpusim_device_attach(int device);

/* Give the slots back; what this process still had queued is gone. */
void gpusim_device_detach(void);

/*
 * Run @work_ns of work that may begin at @start_ns; returns its end. Streams
 * of one process overlap freely; processes share an engine by time slices.
 */
int64_t gpusim_device_run(int device, enum gpusim_engine engine, int64_t start_ns, int64_t work_ns);

/* Count work as busy time of the device without slowing anybody (collectives). */
void gpusim_device_mark_busy(int device, enum gpusim_engine engine, int64_t start_ns, int64_t end_ns);

/* Take memory of the device for this process; false if its limit is reached. */
bool gpusim_device_take_memory(int device, size_t bytes);
void gpusim_device_give_memory(int device, size_t bytes);
uint64_t gpusim_device_memory_used(int device);

/* Share (0 to 1) of the last @window_ns during which @engine was busy. */
double gpusim_device_busy_ratio(int device, enum gpusim_engine engine, int64_t window_ns);

/* The processes with slices of the compute engine in the last @window_ns, and their shares (0 to 1); how many. */
int gpusim_device_shares(int device, int64_t window_ns, int capacity, int *pids, double *ratios);

/* The processes on a device; returns how many were written to the arrays. */
int gpusim_device_processes(int device, int capacity, int *pids, uint64_t *memory_bytes);

#endif

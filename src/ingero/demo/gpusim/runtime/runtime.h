/* SPDX-License-Identifier: Apache-2.0 */
/* What the bodies of the runtime's functions have in common. */
#ifndef GPUSIM_RUNTIME_H
#define GPUSIM_RUNTIME_H

/* Every call's error is what cudaGetLastError returns next. */
#define API_RESULT(error) runtime_result(error)
int runtime_result(int error);

#include "api.h"
#include "driver.h"
#include "error.h"

#define ERROR_INSUFFICIENT_DRIVER 35
#define ERROR_INVALID_DEVICE_FUNCTION 98

struct dim3 {
	unsigned int x, y, z;
};

/* Load the driver and make a device current for this thread, if neither was done. Returns an error. */
int runtime_enter(void);

#define ENTER()					\
	do {					\
		int error_ = runtime_enter();	\
		if (error_)			\
			return error_;		\
	} while (0)

/* The driver function for the kind of default stream that was called for. */
#define ON_STREAM(name) driver.name[fallback == STREAM_PER_THREAD]

/* A function that was resolved to nothing does not exist in this driver. */
#define OR_UNSUPPORTED(function) if (!(function)) return ERROR_NOT_SUPPORTED

/* The primary context of a device, retained once by this library. */
int runtime_context(int device, void **context);
int runtime_device(void);

/* The kernel behind a host function, or behind a kernel handle. NULL: not registered. */
void *runtime_kernel(const void *function);

#endif

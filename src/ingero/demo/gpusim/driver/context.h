/* SPDX-License-Identifier: Apache-2.0 */
/* Which device and stream a call means, and whether this process may use one at all. */
#ifndef GPUSIM_CONTEXT_H
#define GPUSIM_CONTEXT_H

#include "api.h"
#include "error.h"
#include "queue.h"

/* cuInit was called, and not in a parent of this process. */
int driver_ready(void);

/* Devices the process may see ($CUDA_VISIBLE_DEVICES), and their physical numbers. */
int driver_device_count(void);
int driver_physical(int ordinal);	/* -1: there is none */
int driver_ordinal(int physical);

/* Begin of most bodies: the thread's context, or return the error. */
#define NEED_CONTEXT(context)				\
	struct context *context __attribute__((unused));	\
	do {						\
		int error_ = context_current(&context);	\
		if (error_)				\
			return error_;			\
	} while (0)

#define NEED_STREAM(stream, handle)				\
	NEED_CONTEXT(context);					\
	struct stream *stream = stream_get(context, handle, fallback)

#endif

// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "launch.h"

#include <stdlib.h>

#include "context.h"
#include "graph.h"
#include "identity.h"
#include "knobs.h"
#include "truth.h"

#define LAUNCHES_PER_FIRST 80

int64_t kernel_duration_ns(const struct kernel *kernel, const unsigned int grid[3])
{
	uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
	uint64_t waves = (blocks + GPUSIM_MULTIPROCESSORS - 1) / GPUSIM_MULTIPROCESSORS;

	return kernel->wave_ns * (waves ? waves : 1);
}

static int enqueue(struct stream *stream, struct work work)
{
	const volatile struct gpusim_knobs *knobs = gpusim_knobs(stream->context->device);

	if (work.engine == ENGINE_COMPUTE && work.kind == WORK_RUN)
		work.duration_ns *= knobs->kernel_scale;
	stream_begin_enqueue(stream);
	burn_us(knobs->launch_us);
	return stream_enqueue(stream, work);
}

int launch_run(struct stream *stream, enum gpusim_engine engine, int64_t duration_ns)
{
	if (stream->capture) {
		graph_capture(stream, duration_ns);
		return SUCCESS;
	}
	return enqueue(stream, (struct work){ .kind = WORK_RUN, .engine = engine, .duration_ns = duration_ns });
}

/* The driver owns the join from here on: the queue frees it. */
static int launch_join(struct stream *stream, struct join *join)
{
	if (stream->capture) {
		graph_capture(stream, join->duration_ns);
		free(join);
		return SUCCESS;
	}
	return enqueue(stream, (struct work){ .kind = WORK_JOIN, .join = join });
}

/* While the knob is set: every eightieth launch is the first one of its kernel, and loads its code. */
static void load_code(int device)
{
	static unsigned int launches;
	double first_us = gpusim_knobs(device)->first_launch_us;

	if (first_us > 0 && __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED) % LAUNCHES_PER_FIRST == 0)
		burn_us(first_us);
}

static int launch(struct stream *stream, struct kernel *kernel, const unsigned int grid[3], void **params)
{
	if (!kernel)
		return ERROR_INVALID_HANDLE;
	if (!grid[0] || !grid[1] || !grid[2])
		return ERROR_INVALID_VALUE;
	load_code(stream->context->device);
	gpusim_truth_launch(kernel->name, &kernel->truth);
	if (kernel->is_join)
		return launch_join(stream, *(struct join **)params[0]);
	return launch_run(stream, ENGINE_COMPUTE, kernel_duration_ns(kernel, grid));
}

API_STREAM(cuLaunchKernel, _ptsz,
	   (struct kernel *kernel, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
	    unsigned int by, unsigned int bz, unsigned int shared_bytes, void *handle, void **params, void **extra),
	   (kernel, gx, gy, gz, bx, by, bz, shared_bytes, handle, params, extra))
{
	NEED_STREAM(stream, handle);

	return launch(stream, kernel, (unsigned int[]){ gx, gy, gz }, params);
}

struct launch_config {			/* CUlaunchConfig */
	unsigned int grid[3];
	unsigned int block[3];
	unsigned int shared_bytes;
	void *stream;
	void *attributes;
	unsigned int attribute_count;
};

API_STREAM(cuLaunchKernelEx, _ptsz,
	   (const struct launch_config *config, struct kernel *kernel, void **params, void **extra),
	   (config, kernel, params, extra))
{
	NEED_STREAM(stream, config->stream);

	return launch(stream, kernel, config->grid, params);
}

API_STREAM(cuLaunchCooperativeKernel, _ptsz,
	   (struct kernel *kernel, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
	    unsigned int by, unsigned int bz, unsigned int shared_bytes, void *handle, void **params),
	   (kernel, gx, gy, gz, bx, by, bz, shared_bytes, handle, params))
{
	NEED_STREAM(stream, handle);

	return launch(stream, kernel, (unsigned int[]){ gx, gy, gz }, params);
}

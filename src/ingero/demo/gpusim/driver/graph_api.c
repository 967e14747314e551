// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>

#include "context.h"
#include "knobs.h"
#include "launch.h"

/* cuStreamGetCaptureInfo's and cuStreamIsCapturing's answers */
#define CAPTURE_NONE 0
#define CAPTURE_ACTIVE 1

struct graph *graph_create(void)
{
	struct graph *graph = calloc(1, sizeof(*graph));

	if (!graph)
		abort();
	graph->references = 1;
	return graph;
}

struct graph *graph_retain(struct graph *graph)
{
	__atomic_fetch_add(&graph->references, 1, __ATOMIC_RELAXED);
	return graph;
}

void graph_release(struct graph *graph)
{
	if (graph && __atomic_sub_fetch(&graph->references, 1, __ATOMIC_ACQ_REL) == 0)
		free(graph);
}

static void add_node(struct graph *graph, int64_t end_ns)
{
	graph->nodes++;
	if (end_ns > graph->duration_ns)
		graph->duration_ns = end_ns;
}

void graph_capture(struct stream *stream, int64_t duration_ns)
{
	pthread_mutex_lock(&queue_lock);
	stream->capture_ns += duration_ns;
	add_node(stream->capture, stream->capture_ns);
	pthread_mutex_unlock(&queue_lock);
}

void graph_join_capture(struct stream *stream, struct graph *graph, int64_t position_ns)
{
	if (!stream->capture) {
		stream->capture = graph_retain(graph);
		stream->capture_ns = 0;
	}
	if (position_ns > stream->capture_ns)
		stream->capture_ns = position_ns;
}

API_STREAM(cuStreamBeginCapture_v2, _ptsz, (void *handle, int mode), (handle, mode))
{
	NEED_STREAM(stream, handle);

	if (stream == &context->legacy || stream->capture)
		return ERROR_STREAM_CAPTURE_UNSUPPORTED;
	stream->capture_ns = 0;
	stream->capture = graph_create();
	return SUCCESS;
}

API_STREAM(cuStreamBeginCaptureToGraph, _ptsz,
	   (void *handle, struct graph *graph, const void *dependencies, const void *edges, size_t count, int mode),
	   (handle, graph, dependencies, edges, count, mode))
{
	NEED_STREAM(stream, handle);

	if (stream == &context->legacy || stream->capture)
		return ERROR_STREAM_CAPTURE_UNSUPPORTED;
	stream->capture_ns = graph->duration_ns;
	stream->capture = graph_retain(graph);
	return SUCCESS;
}

API_STREAM(cuStreamEndCapture, _ptsz, (void *handle, struct graph **graph), (handle, graph))
{
	NEED_STREAM(stream, handle);

	*graph = stream->capture;
	if (!*graph)
		return ERROR_STREAM_CAPTURE_INVALIDATED;
	pthread_mutex_lock(&queue_lock);
	stream->capture = NULL;
	for (struct stream *other = context->streams; other; other = other->next) {
		if (other->capture != *graph)
			continue;
		other->capture = NULL;	/* a stream that joined through an event */
		graph_release(*graph);
	}
	pthread_mutex_unlock(&queue_lock);
	return SUCCESS;
}

API_STREAM(cuStreamIsCapturing, _ptsz, (void *handle, int *status), (handle, status))
{
	NEED_STREAM(stream, handle);

	*status = stream->capture ? CAPTURE_ACTIVE : CAPTURE_NONE;
	return SUCCESS;
}

static int capture_info(struct stream *stream, int *status, uint64_t *id, struct graph **graph,
			const void **dependencies, size_t *count)
{
	*status = stream->capture ? CAPTURE_ACTIVE : CAPTURE_NONE;
	if (id)
		*id = (uintptr_t)stream->capture;
	if (graph)
		*graph = stream->capture;
	if (dependencies)
		*dependencies = NULL;
	if (count)
		*count = 0;
	return SUCCESS;
}

API_STREAM(cuStreamGetCaptureInfo_v2, _ptsz,
	   (void *handle, int *status, uint64_t *id, struct graph **graph, const void **dependencies, size_t *count),
	   (handle, status, id, graph, dependencies, count))
{
	NEED_STREAM(stream, handle);

	return capture_info(stream, status, id, graph, dependencies, count);
}

API_STREAM(cuStreamGetCaptureInfo_v3, _ptsz,
	   (void *handle, int *status, uint64_t *id, struct graph **graph, const void **dependencies,
	    const void **edges, size_t *count),
	   (handle, status, id, graph, dependencies, edges, count))
{
	NEED_STREAM(stream, handle);

	if (edges)
		*edges = NULL;
	return capture_info(stream, status, id, graph, dependencies, count);
}

API(cuThreadExchangeStreamCaptureMode, (int *mode), (mode))
{
	static __thread int current;
	int previous = current;

	current = *mode;
	*mode = previous;
	return SUCCESS;
}

API(cuGraphCreate, (struct graph **graph, unsigned int flags), (graph, flags))
{
	*graph = graph_create();
	return SUCCESS;
}

API(cuGraphDestroy, (struct graph *graph), (graph))
{
	graph_release(graph);
	return SUCCESS;
}

static struct graph *copy(const struct graph *graph)
{
	struct graph *other = graph_create();

	other->nodes = graph->nodes;
	other->duration_ns = graph->duration_ns;
	return other;
}

API(cuGraphClone, (struct graph **clone, struct graph *graph), (clone, graph))
{
	*clone = copy(graph);
	return SUCCESS;
}

API(cuGraphGetNodes, (struct graph *graph, void **nodes, size_t *count), (graph, nodes, count))
{
	*count = graph->nodes;
	return SUCCESS;
}

struct kernel_node {			/* CUDA_KERNEL_NODE_PARAMS_v2, as far as it is used */
	struct kernel *kernel;
	unsigned int grid[3];
	unsigned int block[3];
};

/* Nodes that are added by hand run one after the other. */
API(cuGraphAddKernelNode_v2,
    (void **node, struct graph *graph, const void *dependencies, size_t count, const struct kernel_node *params),
    (node, graph, dependencies, count, params))
{
	add_node(graph, graph->duration_ns + kernel_duration_ns(params->kernel, params->grid));
	*node = graph;
	return SUCCESS;
}

API(cuGraphAddEmptyNode, (void **node, struct graph *graph, const void *dependencies, size_t count),
    (node, graph, dependencies, count))
{
	add_node(graph, graph->duration_ns);
	*node = graph;
	return SUCCESS;
}

static int instantiate(struct graph **executable, struct graph *graph)
{
	NEED_CONTEXT(context);

	burn_us(gpusim_knobs(context->device)->graph_node_us * graph->nodes);
	*executable = copy(graph);
	return SUCCESS;
}

API(cuGraphInstantiateWithFlags, (struct graph **executable, struct graph *graph, unsigned long long flags),
    (executable, graph, flags))
{
	return instantiate(executable, graph);
}

API(cuGraphInstantiate_v2,
    (struct graph **executable, struct graph *graph, void **node, char *log, size_t size),
    (executable, graph, node, log, size))
{
	if (node)
		*node = NULL;
	if (log && size)
		*log = 0;
	return instantiate(executable, graph);
}

struct instantiate_params {		/* CUDA_GRAPH_INSTANTIATE_PARAMS */
	unsigned long long flags;
	void *upload_stream;
	void *error_node;
	int result;
};

API_STREAM(cuGraphInstantiateWithParams, _ptsz,
	   (struct graph **executable, struct graph *graph, struct instantiate_params *params),
	   (executable, graph, params))
{
	params->error_node = NULL;
	params->result = SUCCESS;
	return instantiate(executable, graph);
}

struct update_result {			/* CUgraphExecUpdateResultInfo */
	int result;
	void *error_node;
	void *error_from_node;
};

API(cuGraphExecUpdate_v2, (struct graph *executable, struct graph *graph, struct update_result *result),
    (executable, graph, result))
{
	*result = (struct update_result){ 0 };
	executable->duration_ns = graph->duration_ns;
	executable->nodes = graph->nodes;
	return SUCCESS;
}

API(cuGraphExecDestroy, (struct graph *executable), (executable))
{
	graph_release(executable);
	return SUCCESS;
}

API_STREAM(cuGraphUpload, _ptsz, (struct graph *executable, void *handle), (executable, handle))
{
	return executable ? SUCCESS : ERROR_INVALID_HANDLE;
}

API_STREAM(cuGraphLaunch, _ptsz, (struct graph *executable, void *handle), (executable, handle))
{
	NEED_STREAM(stream, handle);

	return executable ? launch_run(stream, ENGINE_COMPUTE, executable->duration_ns) : ERROR_INVALID_HANDLE;
}

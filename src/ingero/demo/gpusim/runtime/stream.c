// SPDX-License-Identifier: Apache-2.0
/* Streams, events, capture and graphs. */
#include "runtime.h"

API(cudaStreamCreate, (void **stream), (stream))
{
	ENTER();
	return driver.cuStreamCreate(stream, 0);
}

API(cudaStreamCreateWithFlags, (void **stream, unsigned int flags), (stream, flags))
{
	ENTER();
	return driver.cuStreamCreate(stream, flags);
}

API(cudaStreamCreateWithPriority, (void **stream, unsigned int flags, int priority), (stream, flags, priority))
{
	ENTER();
	return driver.cuStreamCreateWithPriority(stream, flags, priority);
}

API(cudaStreamDestroy, (void *stream), (stream))
{
	ENTER();
	return driver.cuStreamDestroy(stream);
}

API_STREAM(cudaStreamSynchronize, _ptsz, (void *stream), (stream))
{
	ENTER();
	return ON_STREAM(cuStreamSynchronize)(stream);
}

API_STREAM(cudaStreamQuery, _ptsz, (void *stream), (stream))
{
	ENTER();
	return ON_STREAM(cuStreamQuery)(stream);
}

API_STREAM(cudaStreamWaitEvent, _ptsz, (void *stream, void *event, unsigned int flags), (stream, event, flags))
{
	ENTER();
	return ON_STREAM(cuStreamWaitEvent)(stream, event, flags);
}

API_STREAM(cudaStreamGetPriority, _ptsz, (void *stream, int *priority), (stream, priority))
{
	ENTER();
	return ON_STREAM(cuStreamGetPriority)(stream, priority);
}

API_STREAM(cudaStreamGetFlags, _ptsz, (void *stream, unsigned int *flags), (stream, flags))
{
	ENTER();
	return ON_STREAM(cuStreamGetFlags)(stream, flags);
}

API_STREAM(cudaStreamGetId, _ptsz, (void *stream, unsigned long long *id), (stream, id))
{
	ENTER();
	return ON_STREAM(cuStreamGetId)(stream, id);
}

API_STREAM(cudaStreamGetDevice, _ptsz, (void *stream, int *device), (stream, device))
{
	ENTER();
	return ON_STREAM(cuStreamGetDevice)(stream, device);
}

API(cudaEventCreate, (void **event), (event))
{
	ENTER();
	return driver.cuEventCreate(event, 0);
}

API(cudaEventCreateWithFlags, (void **event, unsigned int flags), (event, flags))
{
	ENTER();
	return driver.cuEventCreate(event, flags);
}

API(cudaEventDestroy, (void *event), (event))
{
	ENTER();
	return driver.cuEventDestroy(event);
}

API_STREAM(cudaEventRecord, _ptsz, (void *event, void *stream), (event, stream))
{
	ENTER();
	return ON_STREAM(cuEventRecord)(event, stream);
}

API_STREAM(cudaEventRecordWithFlags, _ptsz, (void *event, void *stream, unsigned int flags), (event, stream, flags))
{
	ENTER();
	return ON_STREAM(cuEventRecordWithFlags)(event, stream, flags);
}

API(cudaEventQuery, (void *event), (event))
{
	ENTER();
	return driver.cuEventQuery(event);
}

API(cudaEventSynchronize, (void *event), (event))
{
	ENTER();
	return driver.cuEventSynchronize(event);
}

API(cudaEventElapsedTime, (float *ms, void *start, void *end), (ms, start, end))
{
	ENTER();
	return driver.cuEventElapsedTime(ms, start, end);
}

API(cudaEventElapsedTime_v2, (float *ms, void *start, void *end), (ms, start, end))
{
	ENTER();
	return driver.cuEventElapsedTime(ms, start, end);
}

API_STREAM(cudaStreamBeginCapture, _ptsz, (void *stream, int mode), (stream, mode))
{
	ENTER();
	return ON_STREAM(cuStreamBeginCapture)(stream, mode);
}

API_STREAM(cudaStreamBeginCaptureToGraph, _ptsz,
	   (void *stream, void *graph, const void *dependencies, const void *edges, size_t count, int mode),
	   (stream, graph, dependencies, edges, count, mode))
{
	ENTER();
	return ON_STREAM(cuStreamBeginCaptureToGraph)(stream, graph, dependencies, edges, count, mode);
}

API_STREAM(cudaStreamEndCapture, _ptsz, (void *stream, void **graph), (stream, graph))
{
	ENTER();
	return ON_STREAM(cuStreamEndCapture)(stream, graph);
}

API_STREAM(cudaStreamIsCapturing, _ptsz, (void *stream, int *status), (stream, status))
{
	ENTER();
	return ON_STREAM(cuStreamIsCapturing)(stream, status);
}

static int capture_info(void *fallback, void *stream, int *status, uint64_t *id, void **graph,
			const void **dependencies, const void **edges, size_t *count)
{
	ENTER();
	return ON_STREAM(cuStreamGetCaptureInfo)(stream, status, id, graph, dependencies, edges, count);
}

#if CUDART_VERSION >= 13000
API_STREAM(cudaStreamGetCaptureInfo, _ptsz,
	   (void *stream, int *status, uint64_t *id, void **graph, const void **dependencies, const void **edges,
	    size_t *count),
	   (stream, status, id, graph, dependencies, edges, count))
{
	return capture_info(fallback, stream, status, id, graph, dependencies, edges, count);
}
#else
API_STREAM(cudaStreamGetCaptureInfo, _ptsz, (void *stream, int *status, uint64_t *id), (stream, status, id))
{
	return capture_info(fallback, stream, status, id, NULL, NULL, NULL, NULL);
}
#endif

API_STREAM(cudaStreamGetCaptureInfo_v2, _ptsz,
	   (void *stream, int *status, uint64_t *id, void **graph, const void **dependencies, size_t *count),
	   (stream, status, id, graph, dependencies, count))
{
	return capture_info(fallback, stream, status, id, graph, dependencies, NULL, count);
}

API_STREAM(cudaStreamGetCaptureInfo_v3, _ptsz,
	   (void *stream, int *status, uint64_t *id, void **graph, const void **dependencies, const void **edges,
	    size_t *count),
	   (stream, status, id, graph, dependencies, edges, count))
{
	return capture_info(fallback, stream, status, id, graph, dependencies, edges, count);
}

API(cudaThreadExchangeStreamCaptureMode, (int *mode), (mode))
{
	ENTER();
	return driver.cuThreadExchangeStreamCaptureMode(mode);
}

API(cudaGraphCreate, (void **graph, unsigned int flags), (graph, flags))
{
	ENTER();
	return driver.cuGraphCreate(graph, flags);
}

API(cudaGraphDestroy, (void *graph), (graph))
{
	ENTER();
	return driver.cuGraphDestroy(graph);
}

API(cudaGraphClone, (void **clone, void *graph), (clone, graph))
{
	ENTER();
	return driver.cuGraphClone(clone, graph);
}

API(cudaGraphGetNodes, (void *graph, void **nodes, size_t *count), (graph, nodes, count))
{
	ENTER();
	return driver.cuGraphGetNodes(graph, nodes, count);
}

API(cudaGraphAddEmptyNode, (void **node, void *graph, const void *dependencies, size_t count),
    (node, graph, dependencies, count))
{
	ENTER();
	return driver.cuGraphAddEmptyNode(node, graph, dependencies, count);
}

struct kernel_node {			/* cudaKernelNodeParams */
	const void *host;
	struct dim3 grid, block;
};

struct driver_kernel_node {		/* CUDA_KERNEL_NODE_PARAMS_v2 */
	void *kernel;
	struct dim3 grid, block;
};

API(cudaGraphAddKernelNode,
    (void **node, void *graph, const void *dependencies, size_t count, const struct kernel_node *params),
    (node, graph, dependencies, count, params))
{
	struct driver_kernel_node converted = { .grid = params->grid, .block = params->block };

	ENTER();
	converted.kernel = runtime_kernel(params->host);
	if (!converted.kernel)
		return ERROR_INVALID_DEVICE_FUNCTION;
	return driver.cuGraphAddKernelNode(node, graph, dependencies, count, &converted);
}

static int instantiate(void **executable, void *graph, unsigned long long flags)
{
	ENTER();
	return driver.cuGraphInstantiateWithFlags(executable, graph, flags);
}

#if CUDART_VERSION >= 12000
API(cudaGraphInstantiate, (void **executable, void *graph, unsigned long long flags), (executable, graph, flags))
{
	return instantiate(executable, graph, flags);
}
#else
API(cudaGraphInstantiate, (void **executable, void *graph, void **error_node, char *log, size_t log_bytes),
    (executable, graph, error_node, log, log_bytes))
{
	return instantiate(executable, graph, 0);
}
#endif

API(cudaGraphInstantiateWithFlags, (void **executable, void *graph, unsigned long long flags),
    (executable, graph, flags))
{
	return instantiate(executable, graph, flags);
}

struct instantiate_params {		/* cudaGraphInstantiateParams */
	unsigned long long flags;
	void *upload_stream;
	void *error_node;
	int result;
};

API_STREAM(cudaGraphInstantiateWithParams, _ptsz,
	   (void **executable, void *graph, struct instantiate_params *params), (executable, graph, params))
{
	params->error_node = NULL;
	params->result = SUCCESS;
	return instantiate(executable, graph, params->flags);
}

#if CUDART_VERSION >= 12000
API(cudaGraphExecUpdate, (void *executable, void *graph, void *result), (executable, graph, result))
{
	ENTER();
	return driver.cuGraphExecUpdate(executable, graph, result);
}
#else
API(cudaGraphExecUpdate, (void *executable, void *graph, void **error_node, int *result),
    (executable, graph, error_node, result))
{
	struct { int result; void *nodes[2]; } info;

	ENTER();
	*error_node = NULL;
	*result = SUCCESS;
	return driver.cuGraphExecUpdate(executable, graph, &info);
}
#endif

API(cudaGraphExecDestroy, (void *executable), (executable))
{
	ENTER();
	return driver.cuGraphExecDestroy(executable);
}

API_STREAM(cudaGraphUpload, _ptsz, (void *executable, void *stream), (executable, stream))
{
	ENTER();
	return ON_STREAM(cuGraphUpload)(executable, stream);
}

API_STREAM(cudaGraphLaunch, _ptsz, (void *executable, void *stream), (executable, stream))
{
	ENTER();
	return ON_STREAM(cuGraphLaunch)(executable, stream);
}

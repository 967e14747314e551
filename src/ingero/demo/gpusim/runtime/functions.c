// SPDX-License-Identifier: Apache-2.0
/* Kernels as compiled programs know them: registered at start-up, loaded at the first use, launched by host address. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

#define TABLE_SLOTS (1u << 19)		/* a real PyTorch registers more than 100,000 functions */
#define CALL_CONFIGURATIONS 16		/* nested <<<>>> of one thread */

struct image {				/* what __cudaRegisterFatBinary returns a handle of */
	void *library;			/* NULL until the first of its functions is used */
};

struct function {
	const void *_Atomic key;	/* host address, or the kernel handle; written last */
	const char *name;
	struct image *image;
	void *_Atomic kernel;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct function *_Atomic table;	/* open addressing; entries are never removed */
static struct image anonymous_image;

static struct function *slot(struct function *functions, const void *key)
{
	uint64_t hash = ((uintptr_t)key >> 3) * 0x9e3779b97f4a7c15ull;
	uint32_t i = hash >> 45;	/* the upper 19 bits */

	while (functions[i].key && functions[i].key != key)
		i = (i + 1) % TABLE_SLOTS;
	return &functions[i];
}

/* With the lock held. */
static struct function *add(const void *key, const char *name, struct image *image, void *kernel)
{
	struct function *function;

	if (!table)
		table = calloc(TABLE_SLOTS, sizeof(*table));
	if (!table)
		abort();
	function = slot(table, key);
	function->name = name;
	function->image = image;
	function->kernel = kernel;
	function->key = key;
	return function;
}

EXPORT void **__cudaRegisterFatBinary(void *binary)
{
	return calloc(1, sizeof(struct image));
}

EXPORT void __cudaRegisterFatBinaryEnd(void **image)
{
}

EXPORT void __cudaUnregisterFatBinary(void **image)
{
}

EXPORT char __cudaInitModule(void **image)
{
	return 1;
}

/* A duration ("#ns=") may stand in either name; the one that tools see, @name, can so stay clean. */
EXPORT void __cudaRegisterFunction(void **image, const char *host, char *device_function, const char *name,
				   int thread_limit, void *tid, void *bid, void *block, void *grid, int *warp)
{
	const char *used = device_function && strchr(device_function, '#') ? device_function : name;

	pthread_mutex_lock(&lock);
	add(host, strdup(used), image ? (struct image *)image : &anonymous_image, NULL);
	pthread_mutex_unlock(&lock);
}

EXPORT void __cudaRegisterVar(void **image, char *host, char *device, const char *name, int external, size_t bytes,
			      int constant, int global)
{
}

EXPORT void __cudaRegisterManagedVar(void **image, void **host, char *device, const char *name, int external,
				     size_t bytes, int constant, int global)
{
}

/* With the lock held. The first function of an image pays for loading it, as lazy loading does. */
static void load(struct function *function)
{
	struct image *image = function->image;
	void *kernel = NULL;

	if (function->kernel)
		return;
#if CUDART_VERSION >= 12000
	if (!image->library)
		driver.cuLibraryLoadData(&image->library, image, NULL, NULL, 0, NULL, NULL, 0);
	if (image->library)
		driver.cuLibraryGetKernel(&kernel, image->library, function->name);
#else
	if (!image->library)
		driver.cuModuleLoadData(&image->library, image);
	if (image->library)
		driver.cuModuleGetFunction(&kernel, image->library, function->name);
#endif
	if (kernel)			/* the handle is accepted where a host address is */
		add(kernel, function->name, image, kernel);
	function->kernel = kernel;
}

void *runtime_kernel(const void *host)
{
	struct function *functions = table, *function;

	if (!functions)
		return NULL;
	function = slot(functions, host);
	if (!function->key)
		return NULL;
	if (!function->kernel) {
		pthread_mutex_lock(&lock);
		load(function);
		pthread_mutex_unlock(&lock);
	}
	return function->kernel;
}

static int get_kernel(void **kernel, const void *host)
{
	ENTER();
	*kernel = runtime_kernel(host);
	return *kernel ? SUCCESS : ERROR_INVALID_DEVICE_FUNCTION;
}

API(__cudaGetKernel, (void **kernel, const void *host), (kernel, host))
{
	return get_kernel(kernel, host);
}

API(cudaGetKernel, (void **kernel, const void *host), (kernel, host))
{
	return get_kernel(kernel, host);
}

API(cudaGetFuncBySymbol, (void **function, const void *host), (function, host))
{
	return get_kernel(function, host);
}

#define NEED_KERNEL(kernel, host)				\
	void *kernel;						\
	int error_ = get_kernel(&kernel, host);			\
	if (error_)						\
		return error_

API_STREAM(cudaLaunchKernel, _ptsz,
	   (const void *host, struct dim3 grid, struct dim3 block, void **args, size_t shared_bytes, void *stream),
	   (host, grid, block, args, shared_bytes, stream))
{
	NEED_KERNEL(kernel, host);

	return ON_STREAM(cuLaunchKernel)(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes,
					 stream, args, NULL);
}

/* What <<<>>> compiles to since CUDA 13: it enters the public function, and is not a call of its own. */
EXPORT int __cudaLaunchKernel(void *kernel, struct dim3 grid, struct dim3 block, void **args, size_t shared_bytes,
			      void *stream)
{
	return cudaLaunchKernel(kernel, grid, block, args, shared_bytes, stream);
}

EXPORT int __cudaLaunchKernel_ptsz(void *kernel, struct dim3 grid, struct dim3 block, void **args,
				   size_t shared_bytes, void *stream)
{
	return cudaLaunchKernel_ptsz(kernel, grid, block, args, shared_bytes, stream);
}

API_STREAM(cudaLaunchCooperativeKernel, _ptsz,
	   (const void *host, struct dim3 grid, struct dim3 block, void **args, size_t shared_bytes, void *stream),
	   (host, grid, block, args, shared_bytes, stream))
{
	NEED_KERNEL(kernel, host);

	return ON_STREAM(cuLaunchCooperativeKernel)(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
						    shared_bytes, stream, args);
}

struct launch_config {			/* cudaLaunchConfig_t */
	struct dim3 grid, block;
	size_t shared_bytes;
	void *stream;
	void *attributes;
	unsigned int attribute_count;
};

struct driver_launch_config {		/* CUlaunchConfig */
	struct dim3 grid, block;
	unsigned int shared_bytes;
	void *stream;
	void *attributes;
	unsigned int attribute_count;
};

API_STREAM(cudaLaunchKernelExC, _ptsz, (const struct launch_config *config, const void *host, void **args),
	   (config, host, args))
{
	NEED_KERNEL(kernel, host);
	struct driver_launch_config driver_config = {
		config->grid, config->block, config->shared_bytes, config->stream, config->attributes,
		config->attribute_count,
	};

	return ON_STREAM(cuLaunchKernelEx)(&driver_config, kernel, args, NULL);
}

static __thread struct {
	struct dim3 grid, block;
	size_t shared_bytes;
	void *stream;
} configurations[CALL_CONFIGURATIONS];
static __thread int configured;

EXPORT unsigned int __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared_bytes,
						void *stream)
{
	if (configured == CALL_CONFIGURATIONS)
		return 1;
	configurations[configured].grid = grid;
	configurations[configured].block = block;
	configurations[configured].shared_bytes = shared_bytes;
	configurations[configured++].stream = stream;
	return 0;
}

EXPORT int __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared_bytes, void **stream)
{
	if (!configured)
		return ERROR_INVALID_VALUE;
	*grid = configurations[--configured].grid;
	*block = configurations[configured].block;
	*shared_bytes = configurations[configured].shared_bytes;
	*stream = configurations[configured].stream;
	return SUCCESS;
}

struct function_attributes {		/* cudaFuncAttributes */
	size_t shared_bytes, constant_bytes, local_bytes;
	int threads_per_block, registers, ptx_version, binary_version, cache_mode, dynamic_shared_bytes;
	int carveout;
};

API(cudaFuncGetAttributes, (struct function_attributes *attributes, const void *host), (attributes, host))
{
	NEED_KERNEL(kernel, host);

	(void)kernel;
	*attributes = (struct function_attributes){
		.threads_per_block = 1024, .registers = 32, .ptx_version = 90, .binary_version = 90,
		.dynamic_shared_bytes = 232448,
	};
	return SUCCESS;
}

API(cudaFuncSetAttribute, (const void *host, int attribute, int value), (host, attribute, value))
{
	NEED_KERNEL(kernel, host);

	return driver.cuFuncSetAttribute(kernel, attribute, value);
}

API(cudaFuncSetCacheConfig, (const void *host, int config), (host, config))
{
	NEED_KERNEL(kernel, host);

	(void)kernel;
	return SUCCESS;
}

API(cudaFuncGetName, (const char **name, const void *host), (name, host))
{
	NEED_KERNEL(kernel, host);

	return driver.cuFuncGetName(name, kernel);
}

static int occupancy(int *blocks, const void *host, int threads, size_t shared_bytes, unsigned int flags)
{
	NEED_KERNEL(kernel, host);

	return driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared_bytes,
									   flags);
}

API(cudaOccupancyMaxActiveBlocksPerMultiprocessor,
    (int *blocks, const void *host, int threads, size_t shared_bytes), (blocks, host, threads, shared_bytes))
{
	return occupancy(blocks, host, threads, shared_bytes, 0);
}

API(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    (int *blocks, const void *host, int threads, size_t shared_bytes, unsigned int flags),
    (blocks, host, threads, shared_bytes, flags))
{
	return occupancy(blocks, host, threads, shared_bytes, flags);
}

API(cudaLibraryLoadData,
    (void **library, const void *code, int *jit_options, void **jit_values, unsigned int jit_count, int *options,
     void **values, unsigned int count),
    (library, code, jit_options, jit_values, jit_count, options, values, count))
{
	ENTER();
	return driver.cuLibraryLoadData(library, code, jit_options, jit_values, jit_count, options, values, count);
}

API(cudaLibraryUnload, (void *library), (library))
{
	ENTER();
	return driver.cuLibraryUnload(library);
}

API(cudaLibraryGetKernel, (void **kernel, void *library, const char *name), (kernel, library, name))
{
	int error;

	ENTER();
	error = driver.cuLibraryGetKernel(kernel, library, name);
	if (error)
		return error;
	pthread_mutex_lock(&lock);
	add(*kernel, name, NULL, *kernel);
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

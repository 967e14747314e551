// SPDX-License-Identifier: Apache-2.0
/*
 * Modules and libraries. A kernel exists as soon as somebody asks for its name,
 * since no code is executed: the name says how long it takes.
 */
#include <stdlib.h>
#include <string.h>

#include "allocation.h"
#include "context.h"
#include "knobs.h"
#include "launch.h"

#define DEFAULT_WAVE_NS 10000		/* for kernels of real programs, whose names say nothing */
#define GLOBAL_BYTES 4096		/* every variable has this size */

struct module {				/* CUmodule and CUlibrary alike */
	struct kernel *kernels;
};

static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;

static int load(struct module **module)
{
	NEED_CONTEXT(context);

	burn_us(gpusim_knobs(context->device)->module_load_us);
	*module = calloc(1, sizeof(**module));
	return *module ? SUCCESS : ERROR_OUT_OF_MEMORY;
}

static struct kernel *create(struct module *module, const char *name)
{
	size_t length = strlen(name) + 1;
	struct kernel *kernel = calloc(1, sizeof(*kernel) + length);
	const char *ns = strstr(name, "#ns=");

	if (!kernel)
		return NULL;
	memcpy(kernel->name, name, length);
	kernel->wave_ns = ns ? atoll(ns + 4) : DEFAULT_WAVE_NS;
	kernel->is_join = strstr(name, "#join") != NULL;
	kernel->module = module;
	kernel->next = module->kernels;
	module->kernels = kernel;
	return kernel;
}

static int get(struct kernel **kernel, struct module *module, const char *name)
{
	if (!module || !name)
		return ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&kernels_lock);
	for (*kernel = module->kernels; *kernel; *kernel = (*kernel)->next)
		if (!strcmp((*kernel)->name, name))
			break;
	if (!*kernel)
		*kernel = create(module, name);
	pthread_mutex_unlock(&kernels_lock);
	return *kernel ? SUCCESS : ERROR_OUT_OF_MEMORY;
}

static int unload(struct module *module)
{
	struct kernel *next;

	if (!module)
		return ERROR_INVALID_HANDLE;
	for (struct kernel *kernel = module->kernels; kernel; kernel = next) {
		next = kernel->next;
		free(kernel);
	}
	free(module);
	return SUCCESS;
}

API(cuModuleLoad, (struct module **module, const char *file), (module, file))
{
	return load(module);
}

API(cuModuleLoadData, (struct module **module, const void *image), (module, image))
{
	return load(module);
}

API(cuModuleLoadDataEx,
    (struct module **module, const void *image, unsigned int count, int *options, void **values),
    (module, image, count, options, values))
{
	return load(module);
}

API(cuModuleLoadFatBinary, (struct module **module, const void *binary), (module, binary))
{
	return load(module);
}

API(cuModuleUnload, (struct module *module), (module))
{
	return unload(module);
}

API(cuModuleGetFunction, (struct kernel **kernel, struct module *module, const char *name), (kernel, module, name))
{
	return get(kernel, module, name);
}

API(cuModuleGetGlobal_v2, (uint64_t *address, size_t *bytes, struct module *module, const char *name),
    (address, bytes, module, name))
{
	NEED_CONTEXT(context);

	if (bytes)
		*bytes = GLOBAL_BYTES;
	return allocation_create(address, GLOBAL_BYTES, ALLOCATION_DEVICE, context->device);
}

API(cuModuleGetLoadingMode, (int *mode), (mode))
{
	*mode = 2;			/* lazy */
	return SUCCESS;
}

API(cuLibraryLoadData,
    (struct module **library, const void *code, int *jit_options, void **jit_values, unsigned int jit_count,
     int *options, void **values, unsigned int count),
    (library, code, jit_options, jit_values, jit_count, options, values, count))
{
	return load(library);
}

API(cuLibraryUnload, (struct module *library), (library))
{
	return unload(library);
}

API(cuLibraryGetKernel, (struct kernel **kernel, struct module *library, const char *name), (kernel, library, name))
{
	return get(kernel, library, name);
}

API(cuLibraryGetModule, (struct module **module, struct module *library), (module, library))
{
	*module = library;
	return SUCCESS;
}

API(cuKernelGetFunction, (struct kernel **function, struct kernel *kernel), (function, kernel))
{
	*function = kernel;
	return SUCCESS;
}

API(cuKernelGetName, (const char **name, struct kernel *kernel), (name, kernel))
{
	*name = kernel->name;
	return SUCCESS;
}

API(cuFuncGetName, (const char **name, struct kernel *kernel), (name, kernel))
{
	*name = kernel->name;
	return SUCCESS;
}

API(cuFuncGetModule, (struct module **module, struct kernel *kernel), (module, kernel))
{
	*module = kernel->module;
	return SUCCESS;
}

static int attribute(int *value, int which)
{
	static const int values[] = { 1024, 0, 0, 0, 32, 90, 90, 0, 232448 };

	*value = which >= 0 && which < (int)(sizeof(values) / sizeof(*values)) ? values[which] : 0;
	return SUCCESS;
}

API(cuFuncGetAttribute, (int *value, int which, struct kernel *kernel), (value, which, kernel))
{
	return attribute(value, which);
}

API(cuFuncSetAttribute, (struct kernel *kernel, int which, int value), (kernel, which, value))
{
	return SUCCESS;
}

API(cuFuncSetCacheConfig, (struct kernel *kernel, int config), (kernel, config))
{
	return SUCCESS;
}

API(cuKernelGetAttribute, (int *value, int which, struct kernel *kernel, int device), (value, which, kernel, device))
{
	return attribute(value, which);
}

API(cuKernelSetAttribute, (int which, int value, struct kernel *kernel, int device), (which, value, kernel, device))
{
	return SUCCESS;
}

static int occupancy(int *blocks, int threads)
{
	*blocks = threads > 0 && threads <= 1024 ? 2048 / threads : 0;
	return SUCCESS;
}

API(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, struct kernel *kernel, int threads, size_t shared),
    (blocks, kernel, threads, shared))
{
	return occupancy(blocks, threads);
}

API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    (int *blocks, struct kernel *kernel, int threads, size_t shared, unsigned int flags),
    (blocks, kernel, threads, shared, flags))
{
	return occupancy(blocks, threads);
}

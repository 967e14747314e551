// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include "bridge.h"
#include "runtime.h"

#define FLAG_PER_THREAD_STREAM 2

struct driver driver;

static int (*get_proc_address)(const char *, void **, int, uint64_t, int *);
static int (*get_proc_address_v1)(const char *, void **, int, uint64_t);
static const struct gpusim_bridge *bridge;
static int loaded;

int driver_find(const char *name, void **address, int version, uint64_t flags)
{
	int result;

	if (get_proc_address)
		return get_proc_address(name, address, version, flags, &result);
	return get_proc_address_v1(name, address, version, flags);
}

static void resolve_all(void)
{
#define RESOLVE(name, version, params) driver_find(#name, (void **)&driver.name, version, 0);
	DRIVER_FUNCTIONS(RESOLVE)
#undef RESOLVE
#define RESOLVE(name, version, params)								\
	driver_find(#name, (void **)&driver.name[0], version, 0);				\
	driver_find(#name, (void **)&driver.name[1], version < 7000 ? 7000 : version, FLAG_PER_THREAD_STREAM);
	DRIVER_STREAM_FUNCTIONS(RESOLVE)
#undef RESOLVE
}

static void load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library)
		return;
#if CUDART_VERSION >= 12000
	get_proc_address = dlsym(library, "cuGetProcAddress_v2");
#else
	get_proc_address_v1 = dlsym(library, "cuGetProcAddress");
#endif
	if (!get_proc_address && !get_proc_address_v1)
		return;
	resolve_all();
	driver.cuGetExportTable((const void **)&bridge, GPUSIM_BRIDGE_UUID);
	loaded = driver.cuInit != NULL;
	if (loaded)
		driver.cuInit(0);
}

int driver_load(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
	return loaded;
}

struct gpusim_thread *gpusim_thread(void)
{
	static __thread struct gpusim_thread without_driver, *thread;

	if (!thread)
		thread = driver_load() && bridge ? bridge->thread() : &without_driver;
	return thread;
}

__attribute__((constructor)) static void open_truth(void)
{
	gpusim_truth_open("runtime");
}

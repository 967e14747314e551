// SPDX-License-Identifier: Apache-2.0
/* How other libraries get at the driver's functions, and what happens when it is loaded and unloaded. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bridge.h"
#include "context.h"

#define FLAG_PER_THREAD_STREAM 2
#define NAME_BYTES 96

extern struct gpusim_entry __start_gpusim_entries[] __attribute__((visibility("hidden")));
extern struct gpusim_entry __stop_gpusim_entries[] __attribute__((visibility("hidden")));
extern struct gpusim_entry __start_gpusim_stubs[] __attribute__((visibility("hidden")));
extern struct gpusim_entry __stop_gpusim_stubs[] __attribute__((visibility("hidden")));

struct gpusim_thread *gpusim_thread(void)
{
	static __thread struct gpusim_thread thread;

	return &thread;
}

__attribute__((constructor)) static void load(void)
{
	gpusim_truth_open("driver");
}

__attribute__((destructor)) static void unload(void)
{
	gpusim_device_detach();
}

API(cuGetExportTable, (const void **table, const void *uuid), (table, uuid))
{
	static const struct gpusim_bridge bridge = { .thread = gpusim_thread };

	if (memcmp(uuid, GPUSIM_BRIDGE_UUID, 16))
		return ERROR_NOT_FOUND;
	*table = &bridge;
	return SUCCESS;
}

/* The CUDA version from which a name means a newer function; the highest one that is not newer counts. */
struct revision {
	const char *name;
	int since;
	const char *symbol;
};

static const struct revision revisions[] = {
	{ "cuCtxCreate", 3020, "cuCtxCreate_v2" },
	{ "cuCtxCreate", 11040, "cuCtxCreate_v3" },
	{ "cuCtxCreate", 12050, "cuCtxCreate_v4" },
	{ "cuDeviceGetUuid", 9020, "cuDeviceGetUuid" },
	{ "cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2" },
	{ "cuEventElapsedTime", 2000, "cuEventElapsedTime" },
	{ "cuEventElapsedTime", 12080, "cuEventElapsedTime_v2" },
	{ "cuGetProcAddress", 11030, "cuGetProcAddress" },
	{ "cuGetProcAddress", 12000, "cuGetProcAddress_v2" },
	{ "cuGraphInstantiate", 10000, "cuGraphInstantiate" },
	{ "cuGraphInstantiate", 11000, "cuGraphInstantiate_v2" },
	{ "cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags" },
	{ "cuMemAdvise", 8000, "cuMemAdvise" },
	{ "cuMemAdvise", 12020, "cuMemAdvise_v2" },
	{ "cuMemPrefetchAsync", 8000, "cuMemPrefetchAsync" },
	{ "cuMemPrefetchAsync", 12020, "cuMemPrefetchAsync_v2" },
	{ "cuStreamBeginCapture", 10000, "cuStreamBeginCapture" },
	{ "cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2" },
	{ "cuStreamGetCaptureInfo", 10010, "cuStreamGetCaptureInfo" },
	{ "cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2" },
	{ "cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3" },
	{ "cuStreamGetCtx", 9020, "cuStreamGetCtx" },
	{ "cuStreamGetCtx", 12050, "cuStreamGetCtx_v2" },
	{ "cuCtxGetDevice", 2000, "cuCtxGetDevice" },
	{ "cuCtxGetDevice", 13000, "cuCtxGetDevice_v2" },
	{ "cuCtxSynchronize", 2000, "cuCtxSynchronize" },
	{ "cuCtxSynchronize", 13000, "cuCtxSynchronize_v2" },
};

static const struct gpusim_entry *find(const char *name)
{
	for (const struct gpusim_entry *e = __start_gpusim_entries; e < __stop_gpusim_entries; e++)
		if (!strcmp(e->name, name))
			return e;
	for (const struct gpusim_entry *e = __start_gpusim_stubs; e < __stop_gpusim_stubs; e++)
		if (!strcmp(e->name, name))
			return e;
	return NULL;
}

static const struct gpusim_entry *find_variant(const char *symbol, uint64_t flags)
{
	static const char *const suffixes[] = { "_ptsz", "_ptds", "" };
	const struct gpusim_entry *entry = NULL;
	char name[NAME_BYTES];

	for (int i = flags & FLAG_PER_THREAD_STREAM ? 0 : 2; i < 3 && !entry; i++) {
		snprintf(name, sizeof(name), "%s%s", symbol, suffixes[i]);
		entry = find(name);
	}
	return entry;
}

static const struct gpusim_entry *resolve(const char *symbol, int version, uint64_t flags)
{
	static const char *const newest_first[] = { "_v4", "_v3", "_v2", "" };
	const struct gpusim_entry *entry = NULL;
	const char *revised = NULL;
	char name[NAME_BYTES];

	for (size_t i = 0; i < sizeof(revisions) / sizeof(*revisions); i++)
		if (!strcmp(revisions[i].name, symbol) && revisions[i].since <= version)
			revised = revisions[i].symbol;
	if (revised)
		return find_variant(revised, flags);
	for (int i = 0; i < 4 && !entry; i++) {
		snprintf(name, sizeof(name), "%s%s", symbol, newest_first[i]);
		entry = find_variant(name, flags);
	}
	return entry;
}

/*
 * GPUSIM_GPA=internal: hand out entries that have no symbol, as a driver may
 * do. A probe on the exported name then sees none of the runtime's calls.
 */
static int get_address(const char *symbol, void **address, int version, uint64_t flags)
{
	const char *mode = getenv("GPUSIM_GPA");
	const struct gpusim_entry *entry = resolve(symbol, version, flags);

	*address = NULL;
	if (!entry)
		return ERROR_NOT_FOUND;
	*address = mode && !strcmp(mode, "internal") && entry->internal ? entry->internal : entry->exported;
	return SUCCESS;
}

API(cuGetProcAddress, (const char *symbol, void **address, int version, uint64_t flags),
    (symbol, address, version, flags))
{
	return get_address(symbol, address, version, flags);
}

#define RESULT_FOUND 0
#define RESULT_NOT_FOUND 1

API(cuGetProcAddress_v2, (const char *symbol, void **address, int version, uint64_t flags, int *result),
    (symbol, address, version, flags, result))
{
	int error = get_address(symbol, address, version, flags);

	if (result)
		*result = error ? RESULT_NOT_FOUND : RESULT_FOUND;
	return error;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an API function is written: the macro makes the exported function, the
 * entry of the truth file, and for the driver a second entry without a symbol;
 * the body follows.
 *
 *	API(cuMemFree_v2, (uint64_t address), (address))
 *	{
 *		...
 *	}
 *
 * Functions that know a default stream exist twice: with the legacy default
 * stream and, with @suffix appended (_ptsz, _ptds), with a stream per thread.
 * Their body has one more variable, `fallback`: the stream that NULL means.
 */
#ifndef GPUSIM_API_H
#define GPUSIM_API_H

#include <stddef.h>
#include <stdint.h>

#include "clock.h"
#include "error.h"
#include "truth.h"

#define EXPORT __attribute__((visibility("default"), noinline))

#define STREAM_LEGACY ((void *)1)
#define STREAM_PER_THREAD ((void *)2)

#ifndef API_RESULT
#define API_RESULT(error) (error)
#endif

#define API_ENTRY(name_, exported_, internal_)							\
	static struct gpusim_entry entry_##name_ __attribute__((used, section("gpusim_entries"))) = {	\
		.name = #name_, .exported = (void *)(exported_), .internal = (void *)(internal_),	\
	};

#define API_TIMED(name, call)									\
	struct gpusim_call call_ = gpusim_enter(&entry_##name);					\
	return gpusim_leave(&entry_##name, call_, API_RESULT(call));

#ifdef GPUSIM_INTERNAL_ENTRIES
#define API_FUNCTION(name, params, call)							\
	EXPORT int name params;									\
	static int internal_##name params;							\
	API_ENTRY(name, name, internal_##name)							\
	EXPORT int name params { API_TIMED(name, call) }					\
	static __attribute__((noinline)) int internal_##name params { API_TIMED(name, call) }
#else
#define API_FUNCTION(name, params, call)							\
	EXPORT int name params;									\
	API_ENTRY(name, name, NULL)								\
	EXPORT int name params { API_TIMED(name, call) }
#endif

#define API(name, params, args)									\
	static int do_##name params;								\
	API_FUNCTION(name, params, do_##name args)						\
	static int do_##name params

#define API_REST(...) __VA_ARGS__

#define API_STREAM(name, suffix, params, args)							\
	static int do_##name(void *fallback, API_REST params);					\
	API_FUNCTION(name, params, do_##name(STREAM_LEGACY, API_REST args))			\
	API_FUNCTION(name##suffix, params, do_##name(STREAM_PER_THREAD, API_REST args))		\
	static int do_##name(void *fallback, API_REST params)

/* An exported name of the real library that does nothing here but refuse. */
#define API_UNSUPPORTED(symbol, error)								\
	EXPORT int symbol(void);								\
	static struct gpusim_entry entry_##symbol __attribute__((used, section("gpusim_stubs"))) = {	\
		.name = #symbol, .exported = (void *)symbol,					\
	};											\
	EXPORT int symbol(void) { return error; }

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Time: everything is CLOCK_MONOTONIC nanoseconds. */
#ifndef GPUSIM_CLOCK_H
#define GPUSIM_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_US 1000ll
#define NS_PER_SEC 1000000000ll

static inline int64_t state_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * NS_PER_SEC + t.tv_nsec;
}

static inline int64_t now_ns(void)
{
	return state_ns(CLOCK_MONOTONIC);
}

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/*
 * Use the CPU as the real call would. Long costs are counted in CPU time, so
 * that being descheduled in the middle prolongs them; for a cost of a few
 * microseconds that clock's system call would cost more than it corrects.
 */
static inline void burn_us(double us)
{
	clockid_t clock = us > 100 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
	int64_t end = state_ns(clock) + (int64_t)(us * NS_PER_US);

	while (state_ns(clock) < end)
		relax();
}

/* Use the CPU up to a time of the device, if that is yet to come. */
static inline void burn_until(int64_t end_ns)
{
	while (now_ns() < end_ns)
		relax();
}

#endif

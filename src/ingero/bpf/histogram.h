/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The histogram bucket of a duration. Without branches: the verifier would follow each of them on every path. */
#pragma once
#include "kernel.h"

/* Whether a number below 2^63 is above a bound. */
INLINE u64 exceeds(u64 value, u64 bound)
{
	return (bound - value) >> 63;
}

INLINE u32 log2_of(u64 value)
{
	u64 result, shift;

	result = exceeds(value, 0xffffffff) << 5;
	value >>= result;
	shift = exceeds(value, 0xffff) << 4;
	value >>= shift;
	result |= shift;
	shift = exceeds(value, 0xff) << 3;
	value >>= shift;
	result |= shift;
	shift = exceeds(value, 0xf) << 2;
	value >>= shift;
	result |= shift;
	shift = exceeds(value, 3) << 1;
	value >>= shift;
	return result | shift | value >> 1;
}

/* OTLP exponential histogram of scale 3, base 2^(1/8): bucket 0 holds everything below 128 ns. */
INLINE u32 bucket_of(u64 value)
{
	u64 exponent, mantissa, eighth, bucket;

	if (value < 128)
		return 0;
	exponent = log2_of(value);
	mantissa = value << (63 - exponent) >> 47 & 0xffff;
	/* bounds: (2^(k/8) - 1) * 65536 for k = 1..7 */
	eighth = exceeds(mantissa, 5931) + exceeds(mantissa, 12400) + exceeds(mantissa, 19454) + exceeds(mantissa, 27146) +
		 exceeds(mantissa, 35534) + exceeds(mantissa, 44681) + exceeds(mantissa, 54656);
	bucket = (exponent - 7) * 8 + eighth + 1;
	return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The live fault knobs of the simulated devices: a file ($GPUSIM_CTL) that
 * tests write and every process that uses a device reads, at each use.
 */
#ifndef GPUSIM_KNOBS_H
#define GPUSIM_KNOBS_H

#include <stdint.h>

#define GPUSIM_MAX_DEVICES 16
#define GPUSIM_KNOBS_BYTES 256		/* one block per device: the file is one page */
#define GPUSIM_KNOBS_MAGIC 0x31424f4e4b555047ull

/*
 * Type, name, default. knobs.py reads this table, so it is the only place
 * where a knob is declared.
 *
 * kernel_scale      kernels (and copies inside the device) last this many times
 *                   their nominal duration
 * pcie_gbps         host <-> device bandwidth, 10^9 bytes/s
 * nvlink_gbps       bandwidth between ranks and between devices
 * device_gbps       bandwidth of copies and memsets inside a device
 * launch_us         host time of one launch, copy or memset
 * first_launch_us   further host time of one launch in eighty: of kernels that
 *                   are used for the first time, one after the other
 * malloc_us         host time of cudaMalloc
 * module_load_us    host time of loading one module or library
 * graph_node_us     host time of instantiating one graph node
 * hang              non-zero: the device completes nothing
 * xid               non-zero: waits and launches return this CUDA error
 * sched             0 as the process asks, 1 spin, 2 yield, 4 blocking
 * queue_depth       work of one stream that may run ahead of the device before
 *                   a launch has to wait; 1022 was measured on a V100, at most 1024
 * mem_limit_bytes   memory of the device, for all processes together
 * throttle_reasons  NVML bit mask of current clock throttle reasons
 * sm_clock_mhz      current and greatest SM clock as NVML reports them
 * temperature_c, power_w  as NVML reports them
 */
#define GPUSIM_KNOBS(KNOB)			\
	KNOB(double, kernel_scale, 1.0)		\
	KNOB(double, pcie_gbps, 12.0)		\
	KNOB(double, nvlink_gbps, 100.0)	\
	KNOB(double, device_gbps, 1000.0)	\
	KNOB(double, launch_us, 4.0)		\
	KNOB(double, first_launch_us, 0.0)	\
	KNOB(double, malloc_us, 60.0)		\
	KNOB(double, module_load_us, 300.0)	\
	KNOB(double, graph_node_us, 20.0)	\
	KNOB(double, power_w, 350.0)		\
	KNOB(uint64_t, hang, 0)			\
	KNOB(uint64_t, xid, 0)			\
	KNOB(uint64_t, sched, 0)		\
	KNOB(uint64_t, queue_depth, 1022)	\
	KNOB(uint64_t, mem_limit_bytes, 17179869184) \
	KNOB(uint64_t, throttle_reasons, 0)	\
	KNOB(uint64_t, sm_clock_mhz, 1980)	\
	KNOB(uint64_t, sm_clock_max_mhz, 1980)	\
	KNOB(uint64_t, temperature_c, 45)

struct gpusim_knobs {
	uint64_t magic;
#define GPUSIM_KNOB_FIELD(type, name, value) type name;
	GPUSIM_KNOBS(GPUSIM_KNOB_FIELD)
#undef GPUSIM_KNOB_FIELD
};

_Static_assert(sizeof(struct gpusim_knobs) <= GPUSIM_KNOBS_BYTES, "a block holds all knobs");

/* The knobs of one device. Never NULL; defaults that nobody can change without $GPUSIM_CTL. */
const volatile struct gpusim_knobs *gpusim_knobs(int device);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of cudaDeviceProp, which differs between CUDA 11, 12 and 13.
 * Facts from the public headers of the runtime; fields that stay zero here are
 * only counted.
 */
#ifndef GPUSIM_DEVICE_PROP_H
#define GPUSIM_DEVICE_PROP_H

#include <stddef.h>

struct device_prop {
	char name[256];
	unsigned char uuid[16];
	char luid[8];
	unsigned int luid_mask;
	size_t total_memory;
	size_t shared_per_block;
	int registers_per_block;
	int warp_size;
	size_t memory_pitch;
	int threads_per_block;
	int block_dim[3];
	int grid_dim[3];
#if CUDART_VERSION < 13000
	int clock_khz;
#endif
	size_t constant_memory;
	int major;
	int minor;
	size_t texture_alignment;
	size_t texture_pitch_alignment;
#if CUDART_VERSION < 13000
	int device_overlap;
#endif
	int multiprocessors;
#if CUDART_VERSION < 13000
	int kernel_timeout;
#endif
	int integrated;
	int can_map_host;
#if CUDART_VERSION < 13000
	int compute_mode;
	int texture_1d_linear;
#endif
	int textures_and_surfaces[38];
	size_t surface_alignment;
	int concurrent_kernels;
	int ecc;
	int pci_bus;
	int pci_device;
	int pci_domain;
	int tcc;
	int async_engines;
	int unified_addressing;
#if CUDART_VERSION < 13000
	int memory_clock_khz;
#endif
	int memory_bus_bits;
	int l2_bytes;
	int persisting_l2_bytes;
	int threads_per_multiprocessor;
	int stream_priorities;
	int global_l1;
	int local_l1;
	size_t shared_per_multiprocessor;
	int registers_per_multiprocessor;
	int managed_memory;
	int multi_gpu_board[2];
	int host_native_atomics;
#if CUDART_VERSION < 13000
	int single_to_double_ratio;
#endif
	int pageable_access;
	int concurrent_managed;
	int compute_preemption;
	int host_pointer_registered;
	int cooperative_launch;
#if CUDART_VERSION < 13000
	int cooperative_multi_device;
#endif
	size_t shared_per_block_optin;
	int pageable_host_tables;
	int direct_managed;
	int blocks_per_multiprocessor;
	int access_policy_window;
	size_t reserved_shared;
	int since_cuda_12[4];		/* hostRegisterSupported .. timelineSemaphoreInteropSupported */
	int memory_pools;
	int reserved[70];
};

#endif

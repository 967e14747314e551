/* SPDX-License-Identifier: Apache-2.0 */
/* The launch path of a tensor library: calls the CUDA runtime, like libtorch_cuda.so. */
#include <stddef.h>

struct dim3 {
	unsigned int x, y, z;
};

extern int cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **arguments,
			    size_t shared_bytes, void *stream);

int aten_launch(const void *function, unsigned int blocks, void *stream)
{
	struct dim3 grid = {blocks, 1, 1};
	struct dim3 block = {256, 1, 1};
	int result = cudaLaunchKernel(function, grid, block, NULL, 0, stream);

	__asm__ volatile(""); /* no tail call: the return address must lie in this library */
	return result;
}

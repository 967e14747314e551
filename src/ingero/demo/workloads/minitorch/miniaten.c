/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launch path of a tensor library: calls the CUDA runtime, like libtorch_cuda.so. Each of its kernels has a host
 * stub, whose symbol is the mangled name of the C++ template, as nvcc makes them.
 */
#include <stddef.h>
#include <string.h>

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

/* number: code that no other stub has, or the linker might make one of two. */
#define STUB(name, symbol, number)                                                                                 \
	void stub_##name(void) __asm__(symbol);                                                                    \
	__attribute__((noinline)) void stub_##name(void)                                                           \
	{                                                                                                          \
		__asm__ volatile("" ::"r"(number));                                                                \
	}

#define STUBS(ONE)                                                                                                 \
	ONE(vectorized_elementwise_kernel, "_ZN2at6native29vectorized_elementwise_kernelILi4EfEEvT0_i", 1)         \
	ONE(vectorized_layer_norm_kernel,                                                                          \
	    "_ZN2at6native12_GLOBAL__N_128vectorized_layer_norm_kernelIfEEvPT_i", 2)                               \
	ONE(fused_dropout_kernel_vec, "_ZN2at6native24fused_dropout_kernel_vecIfjLi4EEEvPT_T0_", 3)                \
	ONE(nll_loss_forward_reduce_cuda_kernel_2d,                                                                \
	    "_ZN2at6native38nll_loss_forward_reduce_cuda_kernel_2dIflEEvPT_T0_", 4)                                \
	ONE(multi_tensor_apply_kernel, "_ZN2at6native25multi_tensor_apply_kernelIfEEviPT_", 5)

STUBS(STUB)

static const struct {
	const char *name, *symbol;
	void (*stub)(void);
} stubs[] = {
#define AS_ROW(name, symbol, number) {#name, symbol, stub_##name},
	STUBS(AS_ROW)
};

/* The host stub of a kernel, and the name that it is to be registered under; NULL: this library has no such kernel. */
const void *aten_stub(const char *name, const char **symbol)
{
	for (size_t i = 0; i < sizeof(stubs) / sizeof(*stubs); i++)
		if (!strcmp(stubs[i].name, name)) {
			*symbol = stubs[i].symbol;
			return (const void *)stubs[i].stub;
		}
	return NULL;
}

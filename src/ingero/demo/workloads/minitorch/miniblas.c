/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix library that reaches the driver past the runtime, like cuBLAS with its static cudart. */
#include <dlfcn.h>
#include <stddef.h>

#define NO_DRIVER 35 /* cudaErrorInsufficientDriver */

static int (*module_load)(void **module, const void *image);
static int (*module_function)(void **function, void *module, const char *name);
static int (*launch)(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
		     unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
		     void *stream, void **arguments, void **extra);
static void *module;

/* Find a device function of this library's own module, which is loaded with the first of them. */
int blas_create(void **function, const char *name)
{
	int result = 0;

	if (!module) {
		void *driver = dlopen("libcuda.so.1", RTLD_NOW);

		if (!driver)
			return NO_DRIVER;
		*(void **)&module_load = dlsym(driver, "cuModuleLoadData");
		*(void **)&module_function = dlsym(driver, "cuModuleGetFunction");
		*(void **)&launch = dlsym(driver, "cuLaunchKernel");
		if (!module_load || !module_function || !launch)
			return NO_DRIVER;
		result = module_load(&module, "miniblas");
	}
	return result ? result : module_function(function, module, name);
}

int blas_gemm(void *function, unsigned int blocks, void *stream)
{
	int result = launch(function, blocks, 1, 1, 256, 1, 1, 0, stream, NULL, NULL);

	__asm__ volatile(""); /* no tail call: the return address must lie in this library */
	return result;
}

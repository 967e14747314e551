// SPDX-License-Identifier: Apache-2.0
/* The functions of cuBLAS whose results PyTorch looks at. */
#include <stdlib.h>

#include "gemm.h"

EXPORT int cublasCreate_v2(void **handle)
{
	*handle = malloc(1);
	return 0;
}

EXPORT int cublasDestroy_v2(void *handle)
{
	free(handle);
	return 0;
}

EXPORT int cublasSetStream_v2(void *handle, void *stream)
{
	gemm_stream = stream;
	return 0;
}

EXPORT int cublasGetStream_v2(void *handle, void **stream)
{
	*stream = gemm_stream;
	return 0;
}

EXPORT int cublasGetMathMode(void *handle, int *mode)
{
	*mode = 0;
	return 0;
}

EXPORT int cublasGetPointerMode_v2(void *handle, int *mode)
{
	*mode = 0;
	return 0;
}

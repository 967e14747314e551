/* SPDX-License-Identifier: Apache-2.0 */
/* What the stub of cuBLAS does for every matrix product: one kernel, launched past the runtime. */
#ifndef GPUSIM_GEMM_H
#define GPUSIM_GEMM_H

#define EXPORT __attribute__((visibility("default"), noinline))

/* The stream that the calling thread's products go to. */
extern __thread void *gemm_stream;

/*
 * Launch one product through cuGetProcAddress, as the real library does with
 * the runtime that is linked into it: nothing of it passes libcudart.so.
 */
int gemm_launch(void);

/* Exported names of no consequence, and those that compute. */
#define STUB(name, result) EXPORT int name(void) { return result; }
#define STUB_GEMM(name) EXPORT int name(void) { return gemm_launch(); }

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Files that several processes map: created, sized and initialized once. */
#ifndef GPUSIM_SHARED_FILE_H
#define GPUSIM_SHARED_FILE_H

#include <stddef.h>

/*
 * Map @size bytes of @path, creating it; @path NULL maps memory that only
 * forked children share. @prepare runs under an exclusive lock of the file at
 * every opening and must leave an initialized file as it is. @fd, if not NULL,
 * receives a descriptor of the file to keep. NULL after a message to stderr.
 */
void *gpusim_map_file(const char *path, size_t size, void (*prepare)(void *memory), int *fd);

/* $@variable with %p replaced by the pid, in @buffer; NULL if it is not set. */
const char *gpusim_env_path(const char *variable, char *buffer, size_t size);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs: only how many nodes there are and how long the longest path takes.
 * That is all a device needs to run one, and it is built as capture goes on.
 */
#ifndef GPUSIM_GRAPH_H
#define GPUSIM_GRAPH_H

#include "queue.h"

struct graph {
	int references;
	int nodes;
	int64_t duration_ns;		/* of its longest path */
};

struct graph *graph_create(void);
struct graph *graph_retain(struct graph *graph);
void graph_release(struct graph *graph);

/* Append work to the captured graph of @stream. */
void graph_capture(struct stream *stream, int64_t duration_ns);

/* @stream becomes part of a capture, at or after @position_ns of it. With queue_lock held. */
void graph_join_capture(struct stream *stream, struct graph *graph, int64_t position_ns);

#endif

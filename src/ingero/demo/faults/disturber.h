/* SPDX-License-Identifier: Apache-2.0 */
/* What all disturbing programs do first: die with their parent, take a name, say that they run. */
#ifndef INGERO_DISTURBER_H
#define INGERO_DISTURBER_H

#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static inline void begin(int argc, char **argv)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc > 1)
		prctl(PR_SET_NAME, argv[1]);
	fprintf(stderr, "ready %d\n", getpid());
}

#endif

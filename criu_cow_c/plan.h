/* The file `guard` in a work folder: what a take or restore is doing, for whoever has to end it.
 * Text, one fact a line, only ever appended to (docs/internals/guard.md). */
#ifndef CW_PLAN_H
#define CW_PLAN_H

#include "tasks.h"

struct cw_process {
	pid_t pid;
	uint64_t starttime;
};

struct cw_plan {
	int restore; /* else a take */
	struct cw_process principal, criu;
	struct cw_process root; /* of the tree; in a restore its init */
	int64_t deadline_ms;    /* CLOCK_MONOTONIC at which the job must run, 0 = none */
	int64_t give_up_ms;     /* how long criu may take to give up */
	int went;
	uint64_t space;         /* inode of the tree's pid namespace */
	char table[40]; /* in a restore: criu's id in the name of its nftables table */
	int journal, netns; /* descriptors, -1 = none; opened by the first read */
	struct cw_pids stopped_before;
};

#define CW_PLAN_NONE { .journal = -1, .netns = -1 }

/* Read FOLDER/guard into a plan that begins as CW_PLAN_NONE; may be called again. Returns 0 or -1 with
 * errno: ENOENT when the operation has ended, EPROTO for what is not such a file. */
int cw_plan_read(const char *folder, struct cw_plan *plan);

int cw_plan_stopped_before(const struct cw_plan *plan, pid_t pid);

/* Copy criu's logs beside the guard's own, for a bug report. */
void cw_plan_keep_logs(const char *folder, const char *guard_log);

/* Remove the work folder and what is in it. */
void cw_plan_remove_folder(const char *folder);

#endif

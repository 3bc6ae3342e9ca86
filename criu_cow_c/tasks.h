/* Reading /proc: what the guard has to know of processes. Pids are the caller's. */
#ifndef CW_TASKS_H
#define CW_TASKS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct cw_stat {
	char state;
	char comm[17];
	pid_t ppid, pgrp;
	uint64_t starttime; /* clock ticks after boot: tells a reused pid */
};

/* Returns 0, or -ESRCH when there is no such process. */
int cw_stat(pid_t pid, struct cw_stat *stat);

/* Whether pid is still the process that began at starttime, and no zombie. */
int cw_is(pid_t pid, uint64_t starttime);

/* The pid that a process has in its own pid namespace, 0 when it is gone. */
pid_t cw_ns_pid(pid_t pid);

/* Inode of a link of /proc/PID, for example "ns/pid" or "exe"; 0 when it can't be read. */
uint64_t cw_inode(pid_t pid, const char *name);

/* A growing list of pids. */
struct cw_pids {
	pid_t *pid;
	size_t count, room;
};
int cw_pids_add(struct cw_pids *list, pid_t pid);
int cw_pids_has(const struct cw_pids *list, pid_t pid);
void cw_pids_free(struct cw_pids *list);

/* The tree below root, parents before children. Returns 0 or -ENOMEM. */
int cw_tree(pid_t root, struct cw_pids *tree);

/* Every process in /proc. */
int cw_everybody(struct cw_pids *list);

#endif

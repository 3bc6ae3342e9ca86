/* Stopping all threads of a process as criu does. */
#ifndef SEIZE_H
#define SEIZE_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

static inline void each_thread(pid_t pid, void (*act)(pid_t tid))
{
	char path[32];
	struct dirent *entry;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	DIR *tasks = opendir(path);
	while (tasks && (entry = readdir(tasks)))
		if (entry->d_name[0] != '.')
			act(atoi(entry->d_name));
	if (tasks)
		closedir(tasks);
}

static inline void seize(pid_t tid)
{
	int status;

	if (ptrace(PTRACE_SEIZE, tid, NULL, PTRACE_O_TRACESYSGOOD) || ptrace(PTRACE_INTERRUPT, tid, NULL, NULL))
		exit(3);
	waitpid(tid, &status, __WALL);
}

static inline void detach(pid_t tid)
{
	ptrace(PTRACE_DETACH, tid, NULL, NULL);
}

#endif

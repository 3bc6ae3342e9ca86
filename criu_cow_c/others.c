#define _GNU_SOURCE
#include "others.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

/* Whether a process is a shadow: nothing else has that name and no descriptor at all. Its state tells
 * nothing: it runs for a moment between the hands of the shadow maker and those of its keeper. A keeper
 * that never comes leaves it to the guard of its take. */
static int is_shadow(int pid)
{
	char path[32], comm[20] = "";
	struct dirent *entry;
	int descriptors = 0;

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return 0;
	int named = fscanf(file, "%19[^\n]", comm) == 1 && !strcmp(comm, "cw-shadow");
	fclose(file);
	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	DIR *fds = named ? opendir(path) : NULL;
	if (!fds)
		return 0;
	while ((entry = readdir(fds)))
		descriptors += entry->d_name[0] != '.';
	closedir(fds);
	return !descriptors;
}

/* SIGKILL everybody in the namespace but shadows. Returns how many were killed. */
static int kill_others(void)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	int killed = 0;

	while (proc && (entry = readdir(proc))) {
		int pid = atoi(entry->d_name);
		if (pid > 1 && !is_shadow(pid) && !kill(pid, SIGKILL))
			killed++;
	}
	if (proc)
		closedir(proc);
	return killed;
}

void cw_end_others(void)
{
	struct timespec pause = { .tv_nsec = 1000 * 1000 };

	while (kill_others()) {
		while (waitpid(-1, NULL, WNOHANG | __WALL) > 0)
			;
		nanosleep(&pause, NULL);
	}
	while (waitpid(-1, NULL, __WALL) > 0)
		;
}

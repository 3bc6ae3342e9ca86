#define _GNU_SOURCE
#include "tasks.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static ssize_t slurp(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t used = 0;
	ssize_t n;

	if (fd < 0)
		return -1;
	while (used + 1 < size && (n = read(fd, text + used, size - 1 - used)) > 0)
		used += (size_t)n;
	close(fd);
	text[used] = 0;
	return (ssize_t)used;
}

int cw_stat(pid_t pid, struct cw_stat *stat)
{
	char path[32], text[1024];
	int ppid, pgrp;
	unsigned long long starttime;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	if (slurp(path, text, sizeof(text)) <= 0)
		return -ESRCH;
	/* The name may hold anything, brackets too: it ends at the last one. */
	char *open = strchr(text, '('), *close = strrchr(text, ')');
	if (!open || !close || close < open)
		return -ESRCH;
	size_t length = (size_t)(close - open - 1);
	if (length >= sizeof(stat->comm))
		length = sizeof(stat->comm) - 1;
	memcpy(stat->comm, open + 1, length);
	stat->comm[length] = 0;
	if (sscanf(close + 1,
		   " %c %d %d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
		   &stat->state, &ppid, &pgrp, &starttime) != 4)
		return -ESRCH;
	stat->ppid = ppid;
	stat->pgrp = pgrp;
	stat->starttime = starttime;
	return 0;
}

int cw_is(pid_t pid, uint64_t starttime)
{
	struct cw_stat stat;

	return !cw_stat(pid, &stat) && stat.starttime == starttime && stat.state != 'Z' && stat.state != 'X';
}

pid_t cw_ns_pid(pid_t pid)
{
	char path[32], text[4096];

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	if (slurp(path, text, sizeof(text)) <= 0)
		return 0;
	char *line = strstr(text, "\nNSpid:");
	if (!line)
		return 0;
	char *end = strchr(line + 1, '\n');
	if (end)
		*end = 0;
	char *last = strrchr(line, '\t');
	return last ? (pid_t)atoi(last + 1) : 0;
}

uint64_t cw_inode(pid_t pid, const char *name)
{
	char path[64];
	struct stat found;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	return stat(path, &found) ? 0 : found.st_ino;
}

int cw_pids_add(struct cw_pids *list, pid_t pid)
{
	if (list->count == list->room) {
		size_t room = list->room ? 2 * list->room : 64;
		pid_t *more = realloc(list->pid, room * sizeof(*more));
		if (!more)
			return -ENOMEM;
		list->pid = more;
		list->room = room;
	}
	list->pid[list->count++] = pid;
	return 0;
}

int cw_pids_has(const struct cw_pids *list, pid_t pid)
{
	for (size_t i = 0; i < list->count; i++)
		if (list->pid[i] == pid)
			return 1;
	return 0;
}

void cw_pids_free(struct cw_pids *list)
{
	free(list->pid);
	memset(list, 0, sizeof(*list));
}

/* Children are listed by the thread that made them (proc_pid_children(5)). */
static int add_children(pid_t pid, struct cw_pids *tree)
{
	char path[300];
	int err = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	DIR *threads = opendir(path);
	if (!threads)
		return 0;
	for (struct dirent *entry; !err && (entry = readdir(threads));) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/children", pid, entry->d_name);
		FILE *children = fopen(path, "re");
		if (!children)
			continue;
		int child;
		while (!err && fscanf(children, "%d", &child) == 1)
			if (!cw_pids_has(tree, child))
				err = cw_pids_add(tree, child);
		fclose(children);
	}
	closedir(threads);
	return err;
}

int cw_tree(pid_t root, struct cw_pids *tree)
{
	int err = cw_pids_add(tree, root);

	for (size_t i = 0; !err && i < tree->count; i++)
		err = add_children(tree->pid[i], tree);
	return err;
}

int cw_everybody(struct cw_pids *list)
{
	DIR *proc = opendir("/proc");
	int err = 0;

	if (!proc)
		return -errno;
	for (struct dirent *entry; !err && (entry = readdir(proc));)
		if (isdigit((unsigned char)entry->d_name[0]))
			err = cw_pids_add(list, (pid_t)atoi(entry->d_name));
	closedir(proc);
	return err;
}

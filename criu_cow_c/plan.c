#define _GNU_SOURCE
#include "plan.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int read_process(const char *words, struct cw_process *process)
{
	int pid;

	if (sscanf(words, "%d %" SCNu64, &pid, &process->starttime) != 2)
		return -1;
	process->pid = pid;
	return 0;
}

static int read_line(const char *line, struct cw_plan *plan)
{
	char key[16];
	int at = 0, pid;

	if (sscanf(line, "%15s %n", key, &at) != 1)
		return -1;
	const char *words = line + at;
	if (!strcmp(key, "take") || !strcmp(key, "restore"))
		return plan->restore = key[0] == 'r', 0;
	if (!strcmp(key, "principal"))
		return read_process(words, &plan->principal);
	if (!strcmp(key, "root"))
		return read_process(words, &plan->root);
	if (!strcmp(key, "space"))
		return sscanf(words, "%" SCNu64, &plan->space) == 1 ? 0 : -1;
	if (!strcmp(key, "criu"))
		return read_process(words, &plan->criu);
	if (!strcmp(key, "deadline"))
		return sscanf(words, "%" SCNd64, &plan->deadline_ms) == 1 ? 0 : -1;
	if (!strcmp(key, "give-up"))
		return sscanf(words, "%" SCNd64, &plan->give_up_ms) == 1 ? 0 : -1;
	if (!strcmp(key, "table"))
		return sscanf(words, "%39s", plan->table) == 1 ? 0 : -1;
	if (!strcmp(key, "stopped"))
		return sscanf(words, "%d", &pid) == 1 ? cw_pids_add(&plan->stopped_before, pid) : -1;
	if (!strcmp(key, "went"))
		return plan->went = 1, plan->deadline_ms = 0, 0;
	return 0; /* a newer writer's */
}

static void open_what_it_names(const char *folder, struct cw_plan *plan)
{
	char path[PATH_MAX];

	if (plan->journal < 0) {
		snprintf(path, sizeof(path), "%s/journal", folder);
		plan->journal = open(path, O_RDWR | O_CLOEXEC);
	}
	if (plan->netns >= 0 || !plan->root.pid)
		return;
	snprintf(path, sizeof(path), "/proc/%d/ns/net", plan->root.pid);
	plan->netns = open(path, O_RDONLY | O_CLOEXEC);
}

int cw_plan_read(const char *folder, struct cw_plan *plan)
{
	char path[PATH_MAX], line[256];
	int first = 1, bad = 0;

	snprintf(path, sizeof(path), "%s/guard", folder);
	FILE *file = fopen(path, "re");
	if (!file)
		return -1;
	plan->stopped_before.count = 0;
	while (!bad && fgets(line, sizeof(line), file)) {
		/* A line without an end is being written. */
		if (!strchr(line, '\n'))
			break;
		bad = first ? !!strcmp(line, "cw-guard 1\n") : read_line(line, plan);
		first = 0;
	}
	fclose(file);
	if (bad || first) {
		errno = EPROTO;
		return -1;
	}
	open_what_it_names(folder, plan);
	return 0;
}

int cw_plan_stopped_before(const struct cw_plan *plan, pid_t pid)
{
	return cw_pids_has(&plan->stopped_before, pid);
}

static void copy_log(const char *folder, const char *name, const char *target_folder)
{
	char from[PATH_MAX], to[PATH_MAX], block[1 << 14];
	ssize_t n;

	/* criu may have run as the job's user, who then owns the folder: no link of his is followed. */
	snprintf(from, sizeof(from), "%s/images/%s", folder, name);
	int source = open(from, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (source < 0)
		return;
	snprintf(to, sizeof(to), "%s/%s", target_folder, name);
	int target = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	while (target >= 0 && (n = read(source, block, sizeof(block))) > 0)
		if (write(target, block, (size_t)n) != n)
			break;
	if (target >= 0)
		close(target);
	close(source);
}

void cw_plan_keep_logs(const char *folder, const char *guard_log)
{
	char target[PATH_MAX];

	snprintf(target, sizeof(target), "%s", guard_log);
	char *slash = strrchr(target, '/');
	if (!slash || !strcmp(target, "/dev/null"))
		return;
	*slash = 0;
	copy_log(folder, "dump.log", target);
	copy_log(folder, "restore.log", target);
}

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
	(void)stat, (void)type, (void)ftw;
	remove(path);
	return 0;
}

void cw_plan_remove_folder(const char *folder)
{
	nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

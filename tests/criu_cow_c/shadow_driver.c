/* Runs the shadow maker outside criu, on tasks that it stops itself.
 *
 * usage: shadow_driver JOURNAL PID...    the journal exists and names the same pids
 *
 * Seizes every thread of every PID, makes the shadows, lets the tasks go, prints one line
 * "PID STATE STEP ERRNO SHADOW" for each, and ends the shadows at the end of its stdin.
 */
#define _GNU_SOURCE
#include "shadow.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void each_thread(pid_t pid, void (*act)(pid_t tid))
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

static void seize(pid_t tid)
{
	int status;

	if (ptrace(PTRACE_SEIZE, tid, NULL, PTRACE_O_TRACESYSGOOD) || ptrace(PTRACE_INTERRUPT, tid, NULL, NULL))
		exit(3);
	waitpid(tid, &status, __WALL);
}

static void detach(pid_t tid)
{
	ptrace(PTRACE_DETACH, tid, NULL, NULL);
}

int main(int argc, char **argv)
{
	struct cw_journal journal = { 0 };
	int fd = open(argv[1], O_RDWR);

	if (argc < 3 || cw_journal_map(fd, &journal))
		return 2;
	close(fd);
	for (int i = 2; i < argc; i++)
		each_thread(atoi(argv[i]), seize);
	cw_shadows_make(&journal);
	for (int i = 2; i < argc; i++)
		each_thread(atoi(argv[i]), detach);
	for (unsigned i = 0; i < journal.head->count; i++) {
		struct cw_journal_entry *e = &journal.entry[i];
		printf("%d %d %d %d %d\n", e->pid, e->state, e->step, e->error, e->shadow);
	}
	printf("done\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
	for (unsigned i = 0; i < journal.head->count; i++)
		if (journal.entry[i].shadow)
			kill(journal.entry[i].shadow, SIGKILL);
	cw_journal_unmap(&journal);
	return 0;
}

/* Runs the shadow maker outside criu, on tasks that it stops itself.
 *
 * usage: shadow_driver JOURNAL PID...    the journal exists and names the same pids
 *
 * Seizes every thread of every PID, makes the shadows, lets the tasks go, prints one line
 * "PID STATE STEP ERRNO SHADOW" for each, and ends the shadows at the end of its stdin.
 */
#define _GNU_SOURCE
#include "seize.h"
#include "shadow.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

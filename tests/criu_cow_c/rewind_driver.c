/* Rewinds threads outside criu, or only decides.
 *
 * usage: rewind_driver JOURNAL PID...   seizes every thread of every PID, rewinds those that the journal
 *                                       names, lets all go, and prints the microseconds that it took
 *        rewind_driver                  answers lines of hexadecimal numbers on stdin with 1 or 0:
 *                                       call CS TEXT RAX ORIG_RAX RSI RDX R10 R8
 *                                       signals BLOCKED CAUGHT
 */
#define _GNU_SOURCE
#include "rewind.h"
#include "seize.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int decide(void)
{
	char kind[16], line[256];
	unsigned long long n[8];

	while (fgets(line, sizeof(line), stdin)) {
		memset(n, 0, sizeof(n));
		sscanf(line, "%15s %llx %llx %llx %llx %llx %llx %llx %llx", kind, &n[0], &n[1], &n[2], &n[3], &n[4],
		       &n[5], &n[6], &n[7]);
		struct user_regs_struct regs = {
			.cs = n[0], .rax = n[2], .orig_rax = n[3], .rsi = n[4], .rdx = n[5], .r10 = n[6], .r8 = n[7]
		};
		printf("%d\n", *kind == 'c' ? cw_may_enter_anew(&regs, (uint16_t)n[1]) :
					      cw_handler_may_run(n[0], n[1]));
	}
	return 0;
}

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

int main(int argc, char **argv)
{
	struct cw_journal journal = { 0 };

	if (argc == 1)
		return decide();
	int fd = open(argv[1], O_RDWR);
	if (cw_journal_map(fd, &journal))
		return 2;
	close(fd);
	for (int i = 2; i < argc; i++)
		each_thread(atoi(argv[i]), seize);
	double begin = now_us();
	cw_rewind(&journal);
	printf("%.0f\n", now_us() - begin);
	for (int i = 2; i < argc; i++)
		each_thread(atoi(argv[i]), detach);
	cw_journal_unmap(&journal);
	return 0;
}

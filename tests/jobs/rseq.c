/* A job with three threads whose restartable sequences glibc has registered (glibc 2.35, rseq(2)).
 *
 * Each thread looks at the processor number that the kernel keeps in its area: pinned to a processor it
 * must be that one. A line a round: "N ok", or "N broken" with what was seen.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/rseq.h>
#include <unistd.h>

static volatile int rounds[3];

static struct rseq *area(void)
{
	return (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

static void *watch(void *which)
{
	volatile int *round = which;
	cpu_set_t all, one;

	sched_getaffinity(0, sizeof(all), &all);
	for (;; usleep(5000))
		for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
			if (!CPU_ISSET(cpu, &all))
				continue;
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			if (sched_setaffinity(0, sizeof(one), &one))
				continue;
			unsigned start = *(volatile unsigned *)&area()->cpu_id_start;
			unsigned seen = *(volatile unsigned *)&area()->cpu_id;
			if ((int)seen != cpu || (int)start != cpu)
				printf("broken: processor %d, cpu_id %u, cpu_id_start %u\n", cpu, seen, start);
			++*round;
		}
	return NULL;
}

int main(void)
{
	pthread_t thread[3];

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!__rseq_size) {
		printf("broken: glibc has not registered rseq\n");
		return 3;
	}
	for (int i = 0; i < 3; i++)
		pthread_create(&thread[i], NULL, watch, (void *)&rounds[i]);
	for (int n = 0;; n++) {
		int before[3] = { rounds[0], rounds[1], rounds[2] };
		usleep(20000);
		if (before[0] || !n)
			printf("%d ok\n", n);
	}
}

/* Tells every 20 ms, in microseconds and counts:
 *
 *     CLOCK_MONOTONIC CLOCK_BOOTTIME UPTIME CLOCK_REALTIME TIMERFD TIMER ITIMER PID PPID
 *
 * UPTIME is /proc/uptime. The timers fire every 100 ms of CLOCK_MONOTONIC (the itimer: of CLOCK_REALTIME's
 * pace); TIMERFD counts the times that it says it fired, TIMER those and what it overran, ITIMER handlers.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t fired, alarms;
static timer_t timer;

static void on_timer(int number)
{
	(void)number;
	fired += 1 + timer_getoverrun(timer);
}

static void on_alarm(int number)
{
	(void)number;
	alarms++;
}

static long us(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static long uptime_us(void)
{
	char text[64] = "";
	int fd = open("/proc/uptime", O_RDONLY);

	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
		exit(1);
	close(fd);
	return (long)(strtod(text, NULL) * 1e6);
}

int main(void)
{
	struct itimerspec every = { { 0, 100000000 }, { 0, 100000000 } };
	struct itimerval also = { { 0, 100000 }, { 0, 100000 } };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct timespec nap = { .tv_nsec = 20000000 };
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	uint64_t ticks = 0, more;

	signal(SIGUSR1, on_timer);
	signal(SIGALRM, on_alarm);
	if (fd < 0 || timerfd_settime(fd, 0, &every, NULL) || timer_create(CLOCK_MONOTONIC, &event, &timer) ||
	    timer_settime(timer, 0, &every, NULL) || setitimer(ITIMER_REAL, &also, NULL))
		return 1;
	for (;;) {
		if (read(fd, &more, sizeof(more)) == sizeof(more))
			ticks += more;
		printf("%ld %ld %ld %ld %lu %d %d %d %d\n", us(CLOCK_MONOTONIC), us(CLOCK_BOOTTIME), uptime_us(),
		       us(CLOCK_REALTIME), (unsigned long)ticks, fired, alarms, getpid(), getppid());
		fflush(stdout);
		nanosleep(&nap, NULL);
	}
}

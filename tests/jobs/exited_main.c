/* A job whose main thread ends while another one goes on. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *count(void *unused)
{
	for (int n = 0;; n++) {
		printf("%d\n", n);
		usleep(20000);
	}
	return unused;
}

int main(void)
{
	pthread_t thread;

	setvbuf(stdout, NULL, _IOLBF, 0);
	pthread_create(&thread, NULL, count, NULL);
	pthread_exit(NULL);
}

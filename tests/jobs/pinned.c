/* Memory that is pinned for DMA, as a buffer registered with io_uring is.
 *
 * usage: pinned MIB
 *
 * Prints "ready MICROSECONDS" when MIB of private memory is pinned: how long a fork takes then.
 */
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST (256ul << 20) /* of one registered buffer the kernel takes up to 1 GiB */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	struct io_uring_params params = { 0 };
	size_t size = (size_t)atol(argv[1]) << 20;
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int ring = (int)syscall(SYS_io_uring_setup, 4, &params);
	if (memory == MAP_FAILED || ring < 0)
		return 3;
	madvise(memory, size, MADV_NOHUGEPAGE);
	memset(memory, 1, size);
	struct iovec parts[16];
	unsigned count = 0;
	for (size_t at = 0; at < size && count < 16; at += MOST)
		parts[count++] = (struct iovec){ memory + at, size - at < MOST ? size - at : MOST };
	if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, parts, count))
		return 4;
	double begin = now();
	pid_t child = fork();
	if (!child)
		_exit(0);
	double end = now();
	waitpid(child, NULL, 0);
	printf("ready %.0f\n", end - begin);
	fflush(stdout);
	pause();
}

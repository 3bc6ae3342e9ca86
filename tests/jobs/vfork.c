/* A job that counts, and calls vfork again and again.
 *
 * usage: vfork FIFO    the child of a vfork reads a byte from FIFO before it ends; until then its parent
 *                      waits in the kernel (state D) and can't be stopped
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char byte;
	int fd = open(argv[argc - 1], O_RDWR | O_CLOEXEC);

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int n = 0;; n++) {
		printf("%d\n", n);
		pid_t pid = vfork();
		if (!pid) {
			if (read(fd, &byte, 1) != 1)
				_exit(1);
			_exit(0);
		}
		waitpid(pid, NULL, 0);
		usleep(20000);
	}
}

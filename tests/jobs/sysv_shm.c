/* Counts in a SysV shared memory segment, one line a round. */
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <unistd.h>

int main(void)
{
	int id = shmget(IPC_PRIVATE, 1 << 16, IPC_CREAT | 0600);
	volatile long *counter = shmat(id, NULL, 0);

	if (id < 0 || (void *)counter == (void *)-1)
		return 3;
	shmctl(id, IPC_RMID, NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (;;) {
		printf("%ld\n", (*counter)++);
		usleep(20000);
	}
}

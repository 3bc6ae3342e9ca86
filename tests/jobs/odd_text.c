/* Its first executable mapping is left out of forks; prints a number every 20 ms. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	void (*empty)(void);
	int advice = argc > 1 && !strcmp(argv[1], "wipe") ? 18 : MADV_DONTFORK;
	unsigned char *page = mmap((void *)0x10000, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	if (page == MAP_FAILED)
		return 1;
	memset(page, 0xc3, 4096);
	if (madvise(page, 4096, advice))
		return 2;
	memcpy(&empty, &page, sizeof(empty));
	for (int n = 0;; n++) {
		empty();
		printf("%d\n", n);
		fflush(stdout);
		usleep(20000);
	}
}

/* Prints what criu would read as /proc/PID/smaps.
 *
 * usage: vmflags_driver PID TABLE
 */
#define _GNU_SOURCE
#include "vmflags.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct stat st;
	char block[4096];
	ssize_t n;

	if (argc != 3)
		return 2;
	int table_fd = open(argv[2], O_RDONLY);
	if (table_fd < 0 || fstat(table_fd, &st))
		return 2;
	const struct cw_vmflags_header *table = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, table_fd, 0);
	int fd = cw_make_smaps(atoi(argv[1]), table);
	if (fd < 0)
		return 1;
	while ((n = read(fd, block, sizeof(block))) > 0)
		if (write(1, block, (size_t)n) != n)
			return 3;
	close(fd);
	munmap((void *)table, (size_t)st.st_size);
	close(table_fd);
	return 0;
}

/* Asks the page mask, as criu would.
 *
 * usage: mask_driver PID START END [ANYOF] [ROOM]    numbers in hexadecimal
 *
 * Prints "START END" of every region found, then "answered A walked W passed P end E".
 */
#define _GNU_SOURCE
#include "mask.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char path[40];

	if (argc < 4)
		return 2;
	uint64_t anyof = argc > 4 ? strtoull(argv[4], NULL, 16) : 0x18; /* present | swapped */
	uint64_t room = argc > 5 ? strtoull(argv[5], NULL, 16) : 1024;
	struct cw_page_region *region = calloc(room, sizeof(*region));
	snprintf(path, sizeof(path), "/proc/%s/pagemap", argv[1]);
	int fd = open(path, O_RDONLY);
	struct cw_pm_scan_arg arg = {
		.size = sizeof(arg),
		.start = strtoull(argv[2], NULL, 16),
		.end = strtoull(argv[3], NULL, 16),
		.vec = (uintptr_t)region,
		.vec_len = room,
		.category_anyof_mask = anyof,
		.return_mask = anyof,
	};
	int n = ioctl(fd, CW_PAGEMAP_SCAN, &arg);
	if (n < 0) {
		perror("PAGEMAP_SCAN");
		return 1;
	}
	for (int i = 0; i < n; i++)
		printf("%" PRIx64 " %" PRIx64 "\n", region[i].start, region[i].end);
	printf("answered %" PRIu64 " walked %" PRIu64 " passed %" PRIu64 " end %llx\n", cw_mask_stats.answered,
	       cw_mask_stats.walked, cw_mask_stats.passed, (unsigned long long)arg.walk_end);
	free(region);
	close(fd);
	return 0;
}

/* Asks the page mask, as criu would.
 *
 * usage: mask_driver scan PID START END [ANYOF] [ROOM]    numbers in hexadecimal
 *        mask_driver read PID START END
 *        mask_driver open PATH                            exit status 1 when that fails
 *
 * Prints "START END" of every region found, or of every page with an entry, then
 * "answered A walked W passed P reads-answered A reads-walked W end E".
 */
#define _GNU_SOURCE
#include "mask.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static uint64_t number(const char *text)
{
	return strtoull(text, NULL, 16);
}

static uint64_t scan(int fd, int argc, char **argv)
{
	uint64_t anyof = argc > 5 ? number(argv[5]) : 0x18; /* present | swapped */
	uint64_t room = argc > 6 ? number(argv[6]) : 1024;
	struct cw_page_region *region = calloc(room, sizeof(*region));
	struct cw_pm_scan_arg arg = {
		.size = sizeof(arg),
		.start = number(argv[3]),
		.end = number(argv[4]),
		.vec = (uintptr_t)region,
		.vec_len = room,
		.category_anyof_mask = anyof,
		.return_mask = anyof,
	};
	int n = ioctl(fd, CW_PAGEMAP_SCAN, &arg);
	if (n < 0) {
		perror("PAGEMAP_SCAN");
		exit(1);
	}
	for (int i = 0; i < n; i++)
		printf("%" PRIx64 " %" PRIx64 "\n", region[i].start, region[i].end);
	free(region);
	return arg.walk_end;
}

static uint64_t read_entries(int fd, char **argv)
{
	uint64_t start = number(argv[3]), pages = (number(argv[4]) - start) / 4096;
	uint64_t *entry = malloc(pages * sizeof(*entry));

	memset(entry, 0xff, pages * sizeof(*entry));
	ssize_t n = pread(fd, entry, pages * sizeof(*entry), (off_t)(start / 4096 * sizeof(*entry)));
	if (n < 0) {
		perror("pread");
		exit(1);
	}
	for (uint64_t i = 0; i < (uint64_t)n / sizeof(*entry); i++)
		if (entry[i])
			printf("%" PRIx64 " %" PRIx64 "\n", start + i * 4096, start + i * 4096 + 4096);
	free(entry);
	return start + (uint64_t)n / sizeof(*entry) * 4096;
}

int main(int argc, char **argv)
{
	char path[40];

	if (argc == 3 && !strcmp(argv[1], "open")) {
		if (open(argv[2], O_RDWR | O_CREAT, 0600) >= 0)
			return 0;
		perror("open");
		return 1;
	}
	if (argc < 5)
		return 2;
	snprintf(path, sizeof(path), "/proc/%s/pagemap", argv[2]);
	int fd = open(path, O_RDONLY);
	uint64_t end = strcmp(argv[1], "read") ? scan(fd, argc, argv) : read_entries(fd, argv);
	printf("answered %" PRIu64 " walked %" PRIu64 " passed %" PRIu64 " reads-answered %" PRIu64
	       " reads-walked %" PRIu64 " end %" PRIx64 "\n",
	       cw_mask_stats.answered, cw_mask_stats.walked, cw_mask_stats.passed, cw_mask_stats.reads_answered,
	       cw_mask_stats.reads_walked, end);
	close(fd);
	return 0;
}

/* Masked is every private mapping but [vdso] and its data, which criu writes and needs itself. */
#define _GNU_SOURCE
#include "mask_ranges.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

struct range {
	uint64_t start, end;
	int masked;
};

/* The mappings of the process that is being dumped: criu does one at a time, and its
 * mappings don't change while it is frozen. */
static struct {
	pid_t pid;
	struct range *range;
	size_t count, room;
} maps;

/* The pid whose pagemap is behind fd, or 0. */
static pid_t pagemap_owner(int fd)
{
	char link[40], target[128];
	int pid = 0, used = 0;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, target, sizeof(target) - 1);
	if (n <= 0)
		return 0;
	target[n] = 0;
	if (sscanf(target, "/proc/%d/pagemap%n", &pid, &used) != 1 || used != n || pid == getpid())
		return 0;
	return pid;
}

static int load_maps(pid_t pid)
{
	char path[40];
	char *line = NULL;
	size_t line_room = 0;

	maps.pid = 0;
	maps.count = 0;
	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return -1;
	while (getline(&line, &line_room, file) > 0) {
		struct range r;
		char perms[5], name[16] = "";
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %*s %15s", &r.start, &r.end, perms, name) < 3)
			continue;
		r.masked = perms[3] == 'p' && strncmp(name, "[vdso]", 6) && strncmp(name, "[vvar", 5) &&
			   strncmp(name, "[vsyscall]", 10);
		if (maps.count == maps.room) {
			size_t room = maps.room ? 2 * maps.room : 1024;
			struct range *bigger = realloc(maps.range, room * sizeof(*bigger));
			if (!bigger) {
				free(line);
				fclose(file);
				return -1;
			}
			maps.range = bigger;
			maps.room = room;
		}
		maps.range[maps.count++] = r;
	}
	free(line);
	fclose(file);
	maps.pid = pid;
	return 0;
}

int cw_mask_look(int fd)
{
	int saved = errno;
	pid_t pid = pagemap_owner(fd);
	int known = pid && (maps.pid == pid || !load_maps(pid));

	errno = saved;
	return known ? 0 : -1;
}

/* Index of the first mapping that ends above addr. */
static size_t first_above(uint64_t addr)
{
	size_t low = 0, high = maps.count;

	while (low < high) {
		size_t mid = (low + high) / 2;
		if (maps.range[mid].end > addr)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

int cw_mask_covers(uint64_t start, uint64_t end)
{
	for (size_t i = first_above(start); i < maps.count && maps.range[i].start < end; i++)
		if (!maps.range[i].masked)
			return 0;
	return 1;
}

uint64_t cw_mask_next(uint64_t at, uint64_t end, int *masked)
{
	size_t i = first_above(at);

	/* A gap has no pages: it may go with the mapping behind it. */
	*masked = i < maps.count && maps.range[i].masked;
	return i < maps.count && maps.range[i].end < end ? maps.range[i].end : end;
}

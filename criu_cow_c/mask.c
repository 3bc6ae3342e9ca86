/* Preloaded into criu: PAGEMAP_SCAN of another process reports no page of a private
 * mapping, so criu writes none of them; the pages are carried by the shadow.
 *
 * Passed to the kernel unchanged:
 * - scans that ask for guard regions (criu 4.2+): criu alone can restore those;
 * - shared mappings: criu finds the used pages of shared memory by the same call;
 * - [vdso] and its data: criu writes and needs them itself.
 * criu's use: criu/pagemap-cache.c (pmc_fill), criu/mem.c (should_dump_page).
 */
#define _GNU_SOURCE
#include "env.h"
#include "mask.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
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

struct cw_mask_stats cw_mask_stats;

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

/* 0, or -1 when the mappings can't be known: then nothing is masked, which costs
 * time and never a page. */
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

static int wholly_masked(uint64_t start, uint64_t end)
{
	for (size_t i = first_above(start); i < maps.count && maps.range[i].start < end; i++)
		if (!maps.range[i].masked)
			return 0;
	return 1;
}

/* Drop what lies in masked mappings from n regions. The kernel joins equal pages of
 * neighbouring mappings into one region, so regions are split at mapping borders; if
 * the pieces outgrow the caller's vector the scan ends early, as the kernel's would. */
static long drop_masked(struct cw_pm_scan_arg *arg, const struct cw_page_region *region, long n)
{
	struct cw_page_region *out = (struct cw_page_region *)(uintptr_t)arg->vec;
	uint64_t kept = 0;

	for (long i = 0; i < n; i++) {
		uint64_t at = region[i].start;
		for (size_t m = first_above(at); at < region[i].end; m++) {
			uint64_t end = m < maps.count && maps.range[m].end < region[i].end ? maps.range[m].end :
											     region[i].end;
			if (m < maps.count && maps.range[m].masked) {
				cw_mask_stats.dropped++;
			} else if (kept && out[kept - 1].end == at && out[kept - 1].categories == region[i].categories) {
				out[kept - 1].end = end;
			} else if (kept == arg->vec_len) {
				arg->walk_end = at;
				return (long)kept;
			} else {
				out[kept++] = (struct cw_page_region){ at, end, region[i].categories };
			}
			at = end;
		}
	}
	return (long)kept;
}

static int masked_scan(int fd, struct cw_pm_scan_arg *arg)
{
	if (wholly_masked(arg->start, arg->end)) {
		cw_mask_stats.answered++;
		arg->walk_end = arg->end;
		return 0;
	}
	cw_mask_stats.walked++;
	long n = syscall(SYS_ioctl, fd, CW_PAGEMAP_SCAN, arg);
	if (n <= 0 || !arg->vec)
		return (int)n;
	size_t bytes = (size_t)n * sizeof(struct cw_page_region);
	struct cw_page_region *found = malloc(bytes);
	if (!found) {
		errno = ENOMEM;
		return -1;
	}
	memcpy(found, (void *)(uintptr_t)arg->vec, bytes);
	n = drop_masked(arg, found, n);
	free(found);
	return (int)n;
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	va_list ap;

	va_start(ap, request);
	void *arg = va_arg(ap, void *);
	va_end(ap);
	if ((uint32_t)request == (uint32_t)CW_PAGEMAP_SCAN && cw_active()) {
		struct cw_pm_scan_arg *scan = arg;
		int saved = errno;
		pid_t pid = pagemap_owner(fd);
		int guards = ((scan->category_mask | scan->category_anyof_mask) & CW_PAGE_IS_GUARD) != 0;
		if (pid && !guards && (maps.pid == pid || !load_maps(pid))) {
			errno = saved;
			return masked_scan(fd, scan);
		}
		cw_mask_stats.passed++;
		errno = saved;
	}
	return (int)syscall(SYS_ioctl, fd, request, arg);
}

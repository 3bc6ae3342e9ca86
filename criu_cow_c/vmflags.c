#define _GNU_SOURCE
#include "vmflags.h"

#include "env.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct cw_vmflags_stats cw_vmflags_stats;

static const struct cw_vmflags_entry *find(const struct cw_vmflags_header *table, int pid, uint64_t start, uint64_t end)
{
	const struct cw_vmflags_entry *entry = (const struct cw_vmflags_entry *)(table + 1);
	size_t low = 0, high = table->count;

	while (low < high) {
		size_t mid = (low + high) / 2;
		const struct cw_vmflags_entry *e = &entry[mid];
		if (e->pid < pid || (e->pid == pid && e->start < start))
			low = mid + 1;
		else
			high = mid;
	}
	const struct cw_vmflags_entry *e = &entry[low];
	return low < table->count && e->pid == pid && e->start == start && e->end == end ? e : NULL;
}

/* The flags of a mapping that is not in the table: known only for plain private anonymous
 * memory, of which processes make and drop some all the time. */
static const char *plain_flags(const char *perms, unsigned long inode, const char *name)
{
	static char text[32];

	if (perms[3] != 'p' || inode || (*name && strncmp(name, "[anon:", 6)))
		return NULL;
	snprintf(text, sizeof(text), "%s%s%smr mw me ac ", perms[0] == 'r' ? "rd " : "", perms[1] == 'w' ? "wr " : "",
		 perms[2] == 'x' ? "ex " : "");
	return text;
}

static int append_mapping(FILE *out, int pid, const struct cw_vmflags_header *table, const char *line)
{
	uint64_t start, end;
	unsigned long inode;
	char perms[5];
	int name_at = 0;

	if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %lu %n", &start, &end, perms, &inode, &name_at) < 4)
		return -1;
	const struct cw_vmflags_entry *known = find(table, pid, start, end);
	const char *name = line + name_at;
	char bare[8] = "";
	sscanf(name, "%7s", bare);
	const char *flags = known ? known->flags : plain_flags(perms, inode, bare);
	if (!flags)
		return -1;
	return fprintf(out, "%sVmFlags: %.*s\n", line, (int)sizeof(known->flags), flags) < 0 ? -1 : 0;
}

int cw_make_smaps(int pid, const struct cw_vmflags_header *table)
{
	char path[40];
	char *line = NULL;
	size_t room = 0;
	int failed = 0;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	FILE *maps = fopen(path, "re");
	if (!maps)
		return -1;
	int fd = memfd_create("cw-smaps", MFD_CLOEXEC);
	FILE *out = fd < 0 ? NULL : fdopen(dup(fd), "w");
	while (out && !failed && getline(&line, &room, maps) > 0)
		failed = append_mapping(out, pid, table, line);
	free(line);
	fclose(maps);
	if (!out || (fclose(out) | failed) || lseek(fd, 0, SEEK_SET)) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	return fd;
}

/* The controller's table, mapped at the first use. */
static const struct cw_vmflags_header *passed_table(void)
{
	static const struct cw_vmflags_header *table;
	static int tried;
	struct stat st;

	if (tried++)
		return table;
	int fd = cw_env_fd("CW_COW_VMFLAGS");
	if (fd < 0 || fstat(fd, &st) || (size_t)st.st_size < sizeof(*table))
		return NULL;
	const struct cw_vmflags_header *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return NULL;
	size_t holds = ((size_t)st.st_size - sizeof(*map)) / sizeof(struct cw_vmflags_entry);
	if (map->magic == CW_VMFLAGS_MAGIC && map->version == 1 && map->count <= holds)
		table = map;
	return table;
}

static int pid_of_proc_dir(int dirfd)
{
	char link[40], target[64];
	int pid = 0, used = 0;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", dirfd);
	ssize_t n = readlink(link, target, sizeof(target) - 1);
	if (n <= 0)
		return 0;
	target[n] = 0;
	return sscanf(target, "/proc/%d%n", &pid, &used) == 1 && used == n ? pid : 0;
}

/* criu/util.c, __open_proc: openat(dir of /proc/PID, "smaps"). */
__attribute__((visibility("default"))) int openat64(int dirfd, const char *path, int flags, ...)
{
	mode_t mode = 0;

	if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {
		va_list ap;
		va_start(ap, flags);
		mode = va_arg(ap, mode_t);
		va_end(ap);
	}
	if (!strcmp(path, "smaps") && cw_active()) {
		int saved = errno, pid = pid_of_proc_dir(dirfd);
		const struct cw_vmflags_header *table = pid && pid != getpid() ? passed_table() : NULL;
		int fd = table ? cw_make_smaps(pid, table) : -1;
		errno = saved;
		if (fd >= 0) {
			cw_vmflags_stats.made++;
			return fd;
		}
		cw_vmflags_stats.real++;
	}
	return (int)syscall(SYS_openat, dirfd, path, flags, mode);
}

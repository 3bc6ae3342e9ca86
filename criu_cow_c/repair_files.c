/* Repairs of what the tree has open: sockets in repair mode, links given to deleted files. */
#define _GNU_SOURCE
#include "repair.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef TCP_REPAIR
#define TCP_REPAIR 19
#endif

/* Call `see` for every descriptor of every process; sums up what it returns. */
static int each_descriptor(const struct cw_pids *tree, int (*see)(pid_t pid, int pidfd, int fd))
{
	int found = 0;

	for (size_t i = 0; i < tree->count; i++) {
		char path[32];
		snprintf(path, sizeof(path), "/proc/%d/fd", tree->pid[i]);
		DIR *folder = opendir(path);
		int pidfd = folder ? (int)syscall(SYS_pidfd_open, tree->pid[i], 0) : -1;
		for (struct dirent *entry; pidfd >= 0 && (entry = readdir(folder));)
			if (isdigit((unsigned char)entry->d_name[0]))
				found += see(tree->pid[i], pidfd, atoi(entry->d_name));
		if (pidfd >= 0)
			close(pidfd);
		if (folder)
			closedir(folder);
	}
	return found;
}

static ssize_t target_of(pid_t pid, int fd, char *target, size_t size)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
	ssize_t length = readlink(path, target, size - 1);
	if (length >= 0)
		target[length] = 0;
	return length;
}

static int clear_repair(pid_t pid, int pidfd, int fd)
{
	char target[64];
	int mode = 0, off = 0, cleared = 0;
	socklen_t size = sizeof(mode);

	if (target_of(pid, fd, target, sizeof(target)) < 0 || strncmp(target, "socket:", 7))
		return 0;
	int sock = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
	if (sock < 0)
		return 0;
	if (!getsockopt(sock, IPPROTO_TCP, TCP_REPAIR, &mode, &size) && mode &&
	    !setsockopt(sock, IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off))) {
		printf("took fd %d of %d out of repair mode\n", fd, pid);
		cleared = 1;
	}
	close(sock);
	return cleared;
}

int cw_clear_tcp_repair(const struct cw_pids *tree)
{
	return each_descriptor(tree, clear_repair);
}

static const char DELETED[] = " (deleted)";

static int remove_link(pid_t pid, int pidfd, int fd)
{
	char target[PATH_MAX], path[PATH_MAX + 64];
	struct stat file, link;
	int removed = 0;

	(void)pidfd;
	ssize_t length = target_of(pid, fd, target, sizeof(target));
	ssize_t tail = (ssize_t)sizeof(DELETED) - 1;
	if (length <= tail || target[0] != '/' || strcmp(target + length - tail, DELETED))
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
	if (stat(path, &file) || !S_ISREG(file.st_mode) || !file.st_nlink)
		return 0;
	target[length - tail] = 0;
	*strrchr(target, '/') = 0;
	snprintf(path, sizeof(path), "/proc/%d/root%s/", pid, target);
	DIR *folder = opendir(path);
	if (!folder)
		return 0;
	for (struct dirent *entry; (entry = readdir(folder));) {
		if (strncmp(entry->d_name, "link_remap.", 11) ||
		    fstatat(dirfd(folder), entry->d_name, &link, AT_SYMLINK_NOFOLLOW) ||
		    link.st_ino != file.st_ino || link.st_dev != file.st_dev ||
		    unlinkat(dirfd(folder), entry->d_name, 0))
			continue;
		printf("removed %s/%s\n", target, entry->d_name);
		removed++;
	}
	closedir(folder);
	return removed;
}

int cw_remove_link_remaps(const struct cw_pids *tree)
{
	return each_descriptor(tree, remove_link);
}

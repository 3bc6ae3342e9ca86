/* Preloaded into criu: what criu 4.1 lacks on newer kernels.
 *
 * Since Linux 6.16 SO_PASSCRED and SO_PASSSEC exist for unix, netlink and bluetooth sockets only
 * (net/core/sock.c, sk_getsockopt); others answer EOPNOTSUPP. criu 4.1 asks every socket for
 * them (criu/sockets.c, dump_socket_opts) and then can't dump a TCP socket at all. Where they do
 * not exist they are off.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("default"))) int getsockopt(int fd, int level, int option, void *value, socklen_t *size)
{
	int saved = errno;

	if (!syscall(SYS_getsockopt, fd, level, option, value, size))
		return 0;
	if (errno != EOPNOTSUPP || level != SOL_SOCKET || (option != SO_PASSCRED && option != SO_PASSSEC))
		return -1;
	memset(value, 0, *size);
	errno = saved;
	return 0;
}

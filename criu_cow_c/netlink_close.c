/* Preloaded into criu: closing a netfilter netlink socket is left to the end of the process.
 *
 * criu deletes its table of locked connections in the pause, right before it lets the job go.
 * The delete itself takes 0.3 ms; closing the socket then waits for the kernel to destroy the
 * table, which takes an RCU grace period (20 ms seen, net/netfilter/nf_tables_api.c
 * nft_rcv_nl_event). criu ends soon after. Only that last socket is left open: criu opens one for
 * every command, two for each connection that it locks, and libnftables calls select(2) on them,
 * which aborts at descriptor 1024.
 */
#define _GNU_SOURCE
#include "env.h"
#include "plugin.h"

#include <errno.h>
#include <linux/netlink.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int socket_option(int fd, int option)
{
	int value;
	socklen_t size = sizeof(value);

	return getsockopt(fd, SOL_SOCKET, option, &value, &size) ? -1 : value;
}

__attribute__((visibility("default"))) int close(int fd)
{
	int saved = errno;

	if (cw_active() && cw_dump_accepted() && socket_option(fd, SO_DOMAIN) == AF_NETLINK && socket_option(fd, SO_PROTOCOL) == NETLINK_NETFILTER)
		return 0;
	errno = saved;
	return (int)syscall(SYS_close, fd);
}

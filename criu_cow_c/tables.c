#define _GNU_SOURCE
#include "tables.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH_BEGIN = 1, DELETE = 2, BATCH_END = 3 };

struct batch {
	char bytes[1024];
	size_t used;
};

/* One message of a batch: header, nfgenmsg and at most one string attribute. */
static void put(struct batch *batch, int type, int flags, unsigned sequence, int family, int resource,
		int attribute, const char *text)
{
	struct nlmsghdr *head = (struct nlmsghdr *)(batch->bytes + batch->used);
	struct nfgenmsg *generic = NLMSG_DATA(head);
	size_t size = NLMSG_LENGTH(sizeof(*generic));

	memset(head, 0, size);
	head->nlmsg_type = (unsigned short)type;
	head->nlmsg_flags = (unsigned short)(NLM_F_REQUEST | flags);
	head->nlmsg_seq = sequence;
	generic->nfgen_family = (unsigned char)family;
	generic->version = NFNETLINK_V0;
	generic->res_id = htons((unsigned short)resource);
	if (text) {
		struct nlattr *attr = (struct nlattr *)((char *)head + NLMSG_ALIGN(size));
		size_t length = strlen(text) + 1;
		attr->nla_type = (unsigned short)attribute;
		attr->nla_len = (unsigned short)(NLA_HDRLEN + length);
		memset((char *)attr + NLA_HDRLEN, 0, NLA_ALIGN(length));
		memcpy((char *)attr + NLA_HDRLEN, text, length);
		size = NLMSG_ALIGN(size) + NLA_ALIGN(attr->nla_len);
	}
	head->nlmsg_len = (unsigned)size;
	batch->used += NLMSG_ALIGN(size);
}

/* The kernel answers the batch's delete with an error message, 0 = done. */
static int answer(int fd)
{
	char bytes[4096];

	for (;;) {
		ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		unsigned left = (unsigned)n;
		for (struct nlmsghdr *head = (struct nlmsghdr *)bytes; NLMSG_OK(head, left);
		     head = NLMSG_NEXT(head, left))
			if (head->nlmsg_type == NLMSG_ERROR)
				return ((struct nlmsgerr *)NLMSG_DATA(head))->error;
	}
}

int cw_table_delete(const char *name)
{
	struct batch batch = { .used = 0 };
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	struct timeval limit = { .tv_sec = 5 };

	if (strlen(name) >= NFT_TABLE_MAXNAMELEN)
		return -EINVAL;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	put(&batch, NFNL_MSG_BATCH_BEGIN, 0, BATCH_BEGIN, AF_UNSPEC, NFNL_SUBSYS_NFTABLES, 0, NULL);
	put(&batch, (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_DELTABLE, NLM_F_ACK, DELETE, NFPROTO_INET, 0,
	    NFTA_TABLE_NAME, name);
	put(&batch, NFNL_MSG_BATCH_END, 0, BATCH_END, AF_UNSPEC, NFNL_SUBSYS_NFTABLES, 0, NULL);
	int err = sendto(fd, batch.bytes, batch.used, 0, (struct sockaddr *)&kernel, sizeof(kernel)) < 0 ?
			  -errno :
			  answer(fd);
	close(fd);
	return err;
}

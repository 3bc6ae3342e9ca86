#include "journal.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

int cw_journal_map(int fd, struct cw_journal *journal)
{
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	size_t bytes = (size_t)st.st_size;
	if (bytes < sizeof(struct cw_journal_header))
		return -EINVAL;

	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;

	struct cw_journal_header *head = map;
	size_t entries = head->room * sizeof(struct cw_journal_entry);
	if (head->magic != CW_JOURNAL_MAGIC || head->version != CW_JOURNAL_VERSION ||
	    entries > bytes - sizeof(*head)) {
		munmap(map, bytes);
		return -EINVAL;
	}
	journal->head = head;
	journal->entry = (struct cw_journal_entry *)(head + 1);
	journal->bytes = bytes;
	journal->room = head->room;
	journal->thread = (struct cw_journal_thread *)(journal->entry + journal->room);
	journal->thread_room = (bytes - sizeof(*head) - entries) / sizeof(struct cw_journal_thread);
	return 0;
}

void cw_journal_unmap(struct cw_journal *journal)
{
	if (journal->head)
		munmap(journal->head, journal->bytes);
	journal->head = NULL;
	journal->entry = NULL;
	journal->thread = NULL;
	journal->bytes = 0;
}

/* The CRIU plugin: its exit hook rewinds interrupted calls and makes the shadows.
 *
 * criu calls the exit hook after it has answered post-dump and right before it lets
 * the tasks go (criu/cr-dump.c, cr_dump_finish): every thread is still seized with its
 * own registers, so nothing can have run or been signalled between skeleton and shadow.
 * The hook is also called after a refused post-dump and is not told so; the controller
 * leaves its decision in the journal first.
 *
 * The controller passes three inherited descriptors:
 *   CW_COW_JOURNAL  the journal file
 *   CW_COW_VMFLAGS  the table of vmflags.h
 *   CW_COW_HOLD     a socket: the plugin writes 'H' when it holds the tasks because a
 *                   shadow could not be made, and lets go at the first byte or at EOF.
 */
#define _GNU_SOURCE
#include "env.h"
#include "journal.h"
#include "mask.h"
#include "plugin.h"
#include "rewind.h"
#include "shadow.h"
#include "vmflags.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

/* criu/include/criu-plugin.h, plugin interface 0.2.0. hooks[] is left empty and
 * max_hooks 0, which every criu since 4.0 accepts. */
enum { STAGE_DUMP = 0 };
struct plugin_desc {
	const char *name;
	int (*init)(int stage);
	void (*exit)(int stage, int ret);
	unsigned int version, max_hooks;
	void *hooks[16];
};

static struct cw_journal journal;
static int hold_fd = -1;

/* criu's table of locked connections is `inet CRIU-<this>` (criu/netfilter.c); whoever comes after a
 * dead criu has to know it. criu exports its symbols to plugins. */
static void note_run_id(void)
{
	const char *id = dlsym(RTLD_DEFAULT, "criu_run_id");

	if (id)
		snprintf(journal.head->criu_run_id, sizeof(journal.head->criu_run_id), "%s", id);
}

int cw_dump_accepted(void)
{
	return journal.head && journal.head->decision == CW_DECISION_MAKE;
}

static int plugin_init(int stage)
{
	if (stage != STAGE_DUMP)
		return 0;
	int fd = cw_env_fd("CW_COW_JOURNAL");
	if (fd < 0)
		return 0; /* not a dump of ours */
	hold_fd = cw_env_fd("CW_COW_HOLD");
	/* A dump without its journal would give a skeleton without pages: fail it now. */
	int err = cw_journal_map(fd, &journal);
	if (!err)
		note_run_id();
	return err;
}

static void hold_for_reading(void)
{
	struct pollfd wait = { .fd = hold_fd, .events = POLLIN };
	char byte = 'H';

	journal.head->phase = CW_PHASE_HOLDING;
	if (hold_fd < 0 || write(hold_fd, &byte, 1) != 1)
		return;
	while (poll(&wait, 1, (int)journal.head->hold_ms) < 0 && errno == EINTR)
		;
	/* Taken, so that closing the socket resets nothing on the other side. */
	if (wait.revents & POLLIN && read(hold_fd, &byte, 1) < 0)
		return;
}

static void plugin_exit(int stage, int ret)
{
	if (stage != STAGE_DUMP || !journal.head)
		return;
	if (!ret && journal.head->decision == CW_DECISION_MAKE) {
		journal.head->phase = CW_PHASE_MAKING;
		cw_rewind(&journal);
		if (cw_shadows_make(&journal))
			hold_for_reading();
	}
	journal.head->smaps_made = cw_vmflags_stats.made;
	journal.head->smaps_real = cw_vmflags_stats.real;
	journal.head->scans_answered = cw_mask_stats.answered;
	journal.head->scans_walked = cw_mask_stats.walked;
	journal.head->reads_answered = (uint32_t)cw_mask_stats.reads_answered;
	journal.head->reads_walked = (uint32_t)cw_mask_stats.reads_walked;
	journal.head->phase = CW_PHASE_DONE;
	cw_journal_unmap(&journal);
}

__attribute__((visibility("default"))) struct plugin_desc CR_PLUGIN_DESC = {
	.name = "cw_cow",
	.init = plugin_init,
	.exit = plugin_exit,
	.version = (0 << 16) + (2 << 8) + 0,
	.max_hooks = 0,
};

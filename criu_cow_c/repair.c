#define _GNU_SOURCE
#include "repair.h"

#include "inject.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GONE_MS 2000 /* a killed process is gone long before */

static void nap(long ms)
{
	struct timespec time = { .tv_nsec = ms * 1000000L };

	nanosleep(&time, NULL);
}

static int stop_and_trace(pid_t pid)
{
	int status;

	if (ptrace(PTRACE_SEIZE, pid, NULL, 0L) || ptrace(PTRACE_INTERRUPT, pid, NULL, NULL))
		return -errno;
	while (waitpid(pid, &status, __WALL) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFSTOPPED(status) ? 0 : -ESRCH;
}

/* -- what the shadow maker has left ---------------------------------------------------- */

/* Whether a process runs in the stub of one of the journal's tasks. */
static int in_a_stub(const struct cw_journal *journal, pid_t pid)
{
	struct user_regs_struct regs;
	int found = 0;

	if (stop_and_trace(pid))
		return 0;
	if (!ptrace(PTRACE_GETREGS, pid, NULL, &regs))
		for (uint32_t i = 0; i < journal->head->count; i++) {
			uint64_t stub = journal->entry[i].stub_addr;
			found |= stub && regs.rip >= stub && regs.rip < stub + sizeof(CW_STUB_TEXT);
		}
	ptrace(PTRACE_DETACH, pid, NULL, NULL);
	return found;
}

static struct cw_journal_entry *entry_of(const struct cw_journal *journal, pid_t ns_pid)
{
	for (uint32_t i = 0; i < journal->head->count; i++)
		if (journal->entry[i].pid == ns_pid)
			return &journal->entry[i];
	return NULL;
}

static int is_shadow(const struct cw_journal *journal, pid_t ns_pid)
{
	for (uint32_t i = 0; i < journal->head->count; i++)
		if (journal->entry[i].shadow == ns_pid)
			return 1;
	return 0;
}

/* Whether a process runs the program of one of the tree's tasks, as their copies do. */
static int runs_like(pid_t pid, const struct cw_pids *tree)
{
	uint64_t program = cw_inode(pid, "exe");

	for (size_t i = 0; i < tree->count; i++)
		if (program && program == cw_inode(tree->pid[i], "exe"))
			return 1;
	return 0;
}

static int is_left(const struct cw_journal *journal, pid_t pid, const struct cw_stat *stat, const struct cw_pids *tree)
{
	pid_t ns_pid = cw_ns_pid(pid);

	if (!ns_pid || entry_of(journal, ns_pid) || stat->state == 'Z' || stat->state == 'X')
		return 0;
	if (!strcmp(stat->comm, "cw-shadow"))
		return is_shadow(journal, ns_pid);
	/* One whose number was not written down in time runs in the stub. */
	return runs_like(pid, tree) && in_a_stub(journal, pid);
}

int cw_kill_shadows(struct cw_journal *journal, uint64_t space, const struct cw_pids *tree)
{
	struct cw_pids all = { 0 };
	int killed = 0, err;

	if (!journal->head->count)
		return 0;
	if ((err = cw_everybody(&all)))
		return err;
	for (size_t i = 0; i < all.count; i++) {
		pid_t pid = all.pid[i], ns_pid = cw_ns_pid(pid);
		struct cw_stat stat;

		if (cw_inode(pid, "ns/pid") != space || cw_stat(pid, &stat) ||
		    !is_left(journal, pid, &stat, tree) || kill(pid, SIGKILL))
			continue;
		for (int tries = 0; tries < GONE_MS && cw_is(pid, stat.starttime); tries++)
			nap(1);
		printf("killed %d, left by the shadow maker\n", pid);
		killed++;
		/* A middle is its task's child; the task must reap it. */
		struct cw_journal_entry *entry = entry_of(journal, cw_ns_pid(stat.ppid));
		if (entry)
			entry->middle = ns_pid;
	}
	cw_pids_free(&all);
	return killed;
}

/* -- tasks ----------------------------------------------------------------------------- */

/* Let a task reap its dead middle, which is no ordinary child: the job would never wait for it. */
static int reap_middle(pid_t pid, const struct cw_journal_entry *entry)
{
	uint64_t all = ~0ull, stub = (entry->text_word & ~0xffffffffull) | CW_STUB_TEXT;
	struct cw_call call = { .pid = pid, .nr = SYS_wait4, .arg = { (uint64_t)entry->middle, 0, __WALL | WNOHANG } };

	if (!entry->middle)
		return 0;
	if (ptrace(PTRACE_SETOPTIONS, pid, NULL, CW_INJECT_OPTIONS) ||
	    ptrace(PTRACE_SETSIGMASK, pid, (void *)sizeof(all), &all) ||
	    ptrace(PTRACE_POKEDATA, pid, (void *)entry->stub_addr, (void *)stub))
		return -errno;
	return cw_call_run(&call, &entry->regs, entry->stub_addr);
}

static int put_back(pid_t pid, const struct cw_journal_entry *entry)
{
	/* Stopped first, so that it does not run before the others are put right. */
	if (kill(pid, SIGSTOP))
		return -errno;
	int err = stop_and_trace(pid);
	if (err)
		return err;
	err = reap_middle(pid, entry);
	if (ptrace(PTRACE_POKEDATA, pid, (void *)entry->stub_addr, (void *)entry->text_word) ||
	    ptrace(PTRACE_SETREGS, pid, NULL, &entry->regs) ||
	    ptrace(PTRACE_SETSIGMASK, pid, (void *)sizeof(entry->sigmask), &entry->sigmask))
		err = -errno;
	if (ptrace(PTRACE_DETACH, pid, NULL, NULL) && !err)
		err = -errno;
	return err;
}

int cw_repair_tasks(struct cw_journal *journal, const struct cw_pids *tree)
{
	int repaired = 0, failed = 0;

	for (size_t i = 0; i < tree->count; i++) {
		pid_t ns_pid = cw_ns_pid(tree->pid[i]);
		struct cw_journal_entry *entry = entry_of(journal, ns_pid);
		if (!ns_pid || !entry || entry->state != CW_STATE_DIRTY)
			continue;
		int err = put_back(tree->pid[i], entry);
		if (err) {
			printf("can't repair %d: %s\n", tree->pid[i], strerror(-err));
			failed = err;
			continue;
		}
		entry->state = CW_STATE_FAILED;
		printf("repaired %d from the journal\n", tree->pid[i]);
		repaired++;
	}
	return failed ? failed : repaired;
}

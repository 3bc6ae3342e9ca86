/* cw-guard: lets a job go on when the process that stopped it has died.
 *
 *   cw-guard --log FILE FOLDER    watch; started before the first SIGSTOP
 *   cw-guard --now FOLDER         the process has died, or criu has: put right what is left, now
 *
 * FOLDER is a take's or restore's work folder; its file `guard` says what is going on
 * (docs/internals/guard.md). Whoever works there removes the folder when it has ended, the file last.
 * The guard writes "ready" to stdout when it watches. It acts when stdin ends, or the deadline passes,
 * and the file is still there. What it does goes to FILE, or to stdout.
 *
 * Exit status: 0 nothing was left or all is put right, 1 the job may have been harmed, 2 failed.
 */
#define _GNU_SOURCE
#include "plan.h"
#include "repair.h"
#include "tables.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, HARMED = 1, FAILED = 2 };

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void nap(void)
{
	struct timespec time = { .tv_nsec = 2000000 };

	nanosleep(&time, NULL);
}

/* Wait until the principal ends or is late. Returns 0 when it says that it is done. */
static int watch(const char *folder, struct cw_plan *plan)
{
	struct pollfd wait = { .fd = STDIN_FILENO, .events = POLLIN };

	for (;;) {
		int64_t left = plan->deadline_ms ? plan->deadline_ms - now_ms() : -1;
		if (plan->deadline_ms && left <= 0)
			return 1;
		int ready = poll(&wait, 1, left > 60000 ? 60000 : (int)left);
		if (ready < 0 && errno != EINTR)
			return 1;
		char byte;
		/* A byte says that the plan has changed. */
		int ended = ready > 0 && read(STDIN_FILENO, &byte, 1) != 1;
		if (ready > 0 && cw_plan_read(folder, plan) && errno == ENOENT)
			return 0;
		if (ended)
			return 1;
	}
}

static void end_principal(const struct cw_plan *plan)
{
	if (!cw_is(plan->principal.pid, plan->principal.starttime))
		return;
	/* It must not come back and believe that the job has stood still all the time. */
	printf("ended %d, which did not let the job go on in time\n", plan->principal.pid);
	kill(plan->principal.pid, SIGKILL);
	while (cw_is(plan->principal.pid, plan->principal.starttime))
		nap();
}

/* criu's processes: the one that was started leads a process group. */
static int criu_lives(const struct cw_plan *plan)
{
	struct cw_pids all = { 0 };
	struct cw_stat stat;
	int alive = 0;

	if (!plan->criu.pid || cw_everybody(&all))
		return 0;
	for (size_t i = 0; i < all.count && !alive; i++)
		alive = !cw_stat(all.pid[i], &stat) && stat.pgrp == plan->criu.pid && stat.state != 'Z' &&
			stat.state != 'X' && stat.starttime >= plan->criu.starttime;
	cw_pids_free(&all);
	return alive;
}

/* criu gives up by itself when its principal is gone. Returns whether it had to be killed. */
static int wait_for_criu(const struct cw_plan *plan)
{
	int64_t limit = now_ms() + plan->give_up_ms;
	int killed = 0;

	while (criu_lives(plan)) {
		if (now_ms() > limit) {
			killed = 1;
			kill(-plan->criu.pid, SIGKILL);
		}
		nap();
	}
	if (killed)
		printf("killed criu, which did not give up in time: the job may be harmed\n");
	return killed;
}

static void delete_table(const struct cw_plan *plan, const char *id)
{
	char name[64];

	if (!id[0])
		return;
	if (plan->netns >= 0 && setns(plan->netns, CLONE_NEWNET)) {
		printf("can't enter the job's network namespace: %s\n", strerror(errno));
		return;
	}
	/* criu cuts the name off at 31 characters, "inet " among them (criu/netfilter.c, table[32]). */
	snprintf(name, sizeof(name), "CRIU-%.21s", id);
	if (!cw_table_delete(name))
		printf("deleted table inet %s\n", name);
}

static void let_go(const struct cw_plan *plan, const struct cw_pids *tree)
{
	struct cw_stat stat;

	for (size_t i = tree->count; i-- > 0;) {
		if (cw_plan_stopped_before(plan, tree->pid[i]) || cw_stat(tree->pid[i], &stat))
			continue;
		if (stat.state == 'T' && !kill(tree->pid[i], SIGCONT))
			printf("continued %d\n", tree->pid[i]);
	}
}

/* Returns whether a task could not be put back. */
static int repair_from_journal(const struct cw_plan *plan, struct cw_pids *tree, int lives)
{
	struct cw_journal journal;

	if (plan->journal < 0 || cw_journal_map(plan->journal, &journal))
		return 0; /* nothing was injected yet */
	cw_kill_shadows(&journal, plan->space, tree);
	/* The tree again: what was killed is gone from it. */
	tree->count = 0;
	int harmed = lives && (cw_tree(plan->root.pid, tree) || cw_repair_tasks(&journal, tree) < 0);
	journal.head->criu_run_id[sizeof(journal.head->criu_run_id) - 1] = 0;
	if (!plan->went)
		delete_table(plan, journal.head->criu_run_id);
	cw_journal_unmap(&journal);
	return harmed;
}

static int repair_take(struct cw_plan *plan)
{
	struct cw_pids tree = { 0 };
	int harmed = wait_for_criu(plan);
	/* A job that has ended may have left shadows and a table. */
	int lives = cw_is(plan->root.pid, plan->root.starttime);

	if (lives && cw_tree(plan->root.pid, &tree))
		return FAILED;
	harmed |= repair_from_journal(plan, &tree, lives);
	if (lives && !plan->went) {
		/* Only a criu that did not end by itself leaves these. */
		if (cw_clear_tcp_repair(&tree) > 0)
			harmed = 1;
		cw_remove_link_remaps(&tree);
		let_go(plan, &tree);
	}
	cw_pids_free(&tree);
	return harmed && lives ? HARMED : OK;
}

/* The end of a restored tree's init ends all of it, criu as well. */
static int repair_restore(struct cw_plan *plan)
{
	if (plan->went)
		return OK;
	if (cw_is(plan->root.pid, plan->root.starttime)) {
		printf("ended the half-made tree below %d\n", plan->root.pid);
		kill(plan->root.pid, SIGKILL);
		while (cw_is(plan->root.pid, plan->root.starttime))
			nap();
	}
	delete_table(plan, plan->table);
	return OK;
}

static int put_right(const char *folder, struct cw_plan *plan)
{
	/* What was written last. */
	if (cw_plan_read(folder, plan))
		return errno == ENOENT ? OK : FAILED;
	return plan->restore ? repair_restore(plan) : repair_take(plan);
}

static int stand_guard(const char *folder, const char *log, struct cw_plan *plan)
{
	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	mlockall(MCL_CURRENT | MCL_FUTURE);
	printf("ready\n");
	if (!freopen(log, "ae", stdout))
		return FAILED;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!watch(folder, plan))
		return OK;
	end_principal(plan);
	/* Held by the principal until now; `doctor --fix` takes it too. */
	int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (lock >= 0)
		flock(lock, LOCK_EX);
	int outcome = put_right(folder, plan);
	cw_plan_keep_logs(folder, log);
	cw_plan_remove_folder(folder);
	return outcome;
}

int main(int argc, char **argv)
{
	struct cw_plan plan = CW_PLAN_NONE;
	int now = argc == 3 && !strcmp(argv[1], "--now");

	if (!now && (argc != 4 || strcmp(argv[1], "--log"))) {
		fprintf(stderr, "usage: cw-guard --now FOLDER | --log FILE FOLDER\n");
		return FAILED;
	}
	const char *folder = argv[argc - 1];
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	if (cw_plan_read(folder, &plan)) {
		fprintf(stderr, "cw-guard: %s/guard: %s\n", folder, strerror(errno));
		return FAILED;
	}
	if (chdir("/"))
		return FAILED;
	return now ? put_right(folder, &plan) : stand_guard(folder, argv[2], &plan);
}

"""How `take` tells what it expects and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from cw_snapshot.cli.tables import printable, size_text
from cw_snapshot.coordinator.take_report import Collapsing, TakeReport
from cw_snapshot.snapshot.predict import JobFacts, PauseParts, Prediction

_LEAST_SHOWN = 50e-6
"""Seconds of a part of the pause that are worth a line."""


def seconds_text(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _fine(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.01 else seconds_text(seconds)


def _part_texts(facts: JobFacts, parts: PauseParts) -> Iterator[tuple[float, str]]:
    yield parts.base, "of any pause"
    yield parts.processes, f"{facts.processes} processes"
    yield parts.threads, f"{facts.threads} threads"
    yield parts.descriptors, f"{facts.descriptors} descriptors"
    yield parts.connections, f"{facts.connections} TCP connections"
    yield parts.mappings, f"{facts.mappings} mappings"
    yield parts.page_tables, f"page tables of {size_text(facts.small_pages * 4096)} in 4 KiB pages"
    yield parts.huge_pages, f"{facts.huge_pages} huge pages"
    yield parts.pinned, f"{size_text(facts.pinned_bytes)} pinned memory, copied"
    yield parts.shared, f"{size_text(facts.shared_bytes)} shared memory, copied"
    yield parts.carried, f"{size_text(facts.carried_bytes)} of files in memory, copied"
    yield parts.reserved, f"a look at each page of {size_text(facts.reserved_bytes)} (kernel before 6.7)"


def plan_lines(p: Prediction) -> Iterator[str]:
    """A prediction with its parts."""
    facts = p.facts
    known = f"machine factor {p.pace.factor:.2f}, {p.pace.page_seconds * 1e9:.0f} ns a page"
    source = "measured" if p.pace.measured else "assumed"
    yield f"pause         about {seconds_text(p.pause_seconds)} ({known}, {source})"
    yield f"              the job keeps the processors busy to {facts.busy:.0%}"
    for seconds, text in _part_texts(facts, p.parts):
        if seconds >= _LEAST_SHOWN:
            yield f"  {_fine(seconds):>10}  {text}"
    if p.rates.pause_factor != 1:
        yield f"              {p.rates.pause_factor:.2f} times the model, as earlier pauses of this job were"
    yield (
        f"memory        at most {size_text(p.extra_memory_bytes)} extra if the job rewrites all, and "
        f"{size_text(p.copied_bytes)} of copies, until it is stored"
    )
    expected = "" if p.stored_bytes is None else f", about {size_text(p.stored_bytes)}"
    yield (
        f"bytes         {size_text(p.read_bytes)} to read and hash, at most {size_text(p.stored_most_bytes)} "
        f"to store{expected}"
    )
    rate = size_text(round(p.rates.bytes_per_second))
    yield f"durable       after about {p.durable_seconds:.1f} s, at {rate}/s ({p.rates.source})"


def collapse_lines(c: Collapsing, *, planned: bool) -> Iterator[str]:
    done = c.collapse.to_json()
    pause = f"{seconds_text(c.pause_before)} -> {seconds_text(c.pause_after)}"
    if planned:
        yield (
            f"collapse      of {size_text(done['candidate_bytes'])}: pause {pause} as predicted, for at most "
            f"{size_text(done['growth_bytes'])} more memory and about {done['seconds']:.1f} s of one core"
        )
        return
    yield (
        f"{size_text(done['collapsed_bytes'])} of {size_text(done['candidate_bytes'])} made huge pages in "
        f"{done['seconds']:.1f} s; predicted pause {pause}"
    )
    failed = ", ".join(f"{count} {name}" for name, count in sorted(done["failed"].items()))
    if failed:
        yield f"ranges of 2 MiB that the kernel refused: {failed}"
    if done["stopped"]:
        yield f"the collapse ended early: {done['stopped']}"


def compared_lines(compared: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Predicted and actual, one line each; of any version of the record."""
    texts = {
        "pause_seconds": ("pause", seconds_text),
        "durable_seconds": ("durable after", seconds_text),
        "read_bytes": ("read", size_text),
        "stored_bytes": ("stored", size_text),
        "extra_memory_bytes": ("extra memory", size_text),
    }
    for name, (title, text) in texts.items():
        pair = compared.get(name, {})
        if pair.get("actual") is None:
            continue
        told = []
        if pair.get("predicted") is not None:
            told.append(f"predicted {text(pair['predicted'])}")
        if pair.get("at_most") is not None:
            told.append(f"at most {text(pair['at_most'])}")
        yield f"{title:<14}{text(pair['actual']):<12}{', '.join(told)}"


def print_plan(report: TakeReport) -> None:
    p = report.predicted
    assert p is not None
    click.echo(f"job           {report.job}: {p.facts.processes} processes, {p.facts.threads} threads")
    for line in plan_lines(p):
        click.echo(line)
    if report.collapsing:
        for line in collapse_lines(report.collapsing, planned=True):
            click.echo(line)
    for finding in report.findings:
        click.echo(f"{finding.severity.name.lower():<13} {printable(str(finding))}")
    if not report.findings:
        click.echo("findings      none")


def print_report(report: TakeReport) -> None:
    if report.pause_seconds is None:
        click.echo(f"{report.snapshot}: job {report.job} was stopped after its snapshot was durable")
    else:
        click.echo(f"{report.snapshot}: job {report.job} paused {seconds_text(report.pause_seconds)}")
    stats = report.stats
    click.echo(
        f"  {size_text(stats.seen_bytes)} seen, {size_text(stats.zero_bytes)} zero, "
        f"{size_text(stats.new_bytes)} new, {size_text(stats.stored_bytes)} stored"
    )
    if report.collapsing:
        for line in collapse_lines(report.collapsing, planned=False):
            click.echo(f"  {line}")
    for line in compared_lines(report.compared()):
        click.echo(f"  {line}")

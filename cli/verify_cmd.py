"""`cw-snapshot verify`: check that a snapshot can be read back."""

from __future__ import annotations

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.cli.tables import size_text
from cw_snapshot.errors import ExitCode, UsageError
from cw_snapshot.storage.verify import VerifyResult, verify_snapshot


def parse_share(text: str) -> float:
    """`5%` or `0.05` as a part of one."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise UsageError(what=f"--sample {text!r} is not a share such as 5%")
    return share


def _print(result: VerifyResult) -> None:
    verdict = "is sound" if result.ok else "is DAMAGED"
    click.echo(f"{result.ref.job}/{result.ref.snapshot} {verdict}")
    click.echo(
        f"  {result.manifests} manifests, {result.packs} packs, {result.chunks} chunks; "
        f"{result.chunks_read} chunks read back ({size_text(result.bytes_read)})"
    )
    for problem in result.problems:
        click.echo(f"  {problem.message}")


@command("verify", ExitCode.NOT_FOUND, ExitCode.INTEGRITY, ExitCode.UNREACHABLE)
@settings_options("repository", "threads")
@click.option("--sample", metavar="SHARE", default="100%", help="Read back this share only, such as 5%.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    help="Which chunks a share is; another seed, other chunks.",
)
@click.argument("snapshot", metavar="SNAP")
def verify_command(context: Context, sample: str, seed: int, snapshot: str) -> int:
    """Check that SNAP is complete, and read its chunks back and compare them with their hashes.

    Everything that is wrong is listed. Restore verifies what it reads in any case.
    """
    repository = context.repository()
    result = verify_snapshot(
        repository,
        repository.find(snapshot),
        threads=context.settings.threads,
        share=parse_share(sample),
        seed=seed,
    )
    document = {
        "job": result.ref.job,
        "snapshot": result.ref.snapshot,
        "ok": result.ok,
        "manifests": result.manifests,
        "packs": result.packs,
        "chunks": result.chunks,
        "chunks_read": result.chunks_read,
        "bytes_read": result.bytes_read,
        "problems": [p.message for p in result.problems],
    }
    context.emit("verify", document, lambda: _print(result))
    return 0 if result.ok else int(ExitCode.INTEGRITY)

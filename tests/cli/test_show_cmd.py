"""Secrets in the environment are hidden."""

from __future__ import annotations

from cw_snapshot.cli.show_cmd import redact


def test_redact() -> None:
    given = [
        "PATH=/bin",
        "AWS_SECRET_ACCESS_KEY=abc",
        "WANDB_API_KEY=x=y",
        "HF_TOKEN=t",
        "MY_PASSWORD=",
        "odd",
        "DATABASE_URL=postgres://u:pw@h/db",
    ]
    assert redact(given) == [
        "PATH=/bin",
        "AWS_SECRET_ACCESS_KEY=<redacted>",
        "WANDB_API_KEY=<redacted>",
        "HF_TOKEN=<redacted>",
        "MY_PASSWORD=<redacted>",
        "odd",
        "DATABASE_URL=postgres://u:<redacted>@h/db",
    ]

"""Telling the kernel's packet filter what to do, in our network namespace."""

from __future__ import annotations

import subprocess


class NftError(Exception):
    """What nft says, or why it could not be started."""


def apply(commands: str) -> None:
    """Commands of nft(8), all of them or none.

    :raises NftError: nothing changed.
    """
    try:
        done = subprocess.run(["nft", "-f", "-"], input=commands, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NftError(error.strerror) from error
    if done.returncode:
        raise NftError(done.stderr.strip())

"""What `show --json` and a bug report tell of a snapshot's tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from cw_snapshot.coordinator.redaction import Redactor
from cw_snapshot.storage.manifest import ZERO, Stream
from cw_snapshot.storage.reader import TreeReader

_PAGE = 4096


def memory_of(stream: Stream | None) -> dict[str, int]:
    """Bytes of data and of zero pages in a process's stream."""
    if stream is None:
        return {"data_bytes": 0, "zero_bytes": 0}
    pages = stream.extents["pages"].astype(np.int64)
    zero = int(pages[stream.extents["chunk"] == ZERO].sum())
    return {"data_bytes": (int(pages.sum()) - zero) * _PAGE, "zero_bytes": zero * _PAGE}


def tree_document(reader: TreeReader, redactor: Redactor | None) -> dict[str, Any]:
    """One node's tree.

    :param redactor: hides what looks secret in environments and command lines; None shows all.
    """
    metadata = reader.metadata
    processes = []
    for process in metadata["processes"]:
        shown = dict(process)
        if redactor is not None:
            shown["environment"] = redactor.environment(process.get("environment", []))
            shown["cmdline"] = redactor.arguments(process.get("cmdline", []))
        processes.append({**shown, "memory": memory_of(reader.streams.get(f"pages/{process['pid']}"))})
    return {
        "platform": metadata["platform"],
        "processes": processes,
        "files": metadata["files"],
        "directories": metadata["directories"],
        "sockets": metadata["sockets"],
        "stdio": metadata["stdio"],
    }

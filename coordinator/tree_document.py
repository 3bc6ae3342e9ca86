"""What `show --json` and a bug report tell of a snapshot's tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from cw_snapshot.coordinator.placement import member_names
from cw_snapshot.coordinator.redaction import Redactor
from cw_snapshot.storage.commit import Commit
from cw_snapshot.storage.manifest import ZERO, ManifestRef, Stream
from cw_snapshot.storage.reader import TreeReader
from cw_snapshot.storage.repository import Repository

_PAGE = 4096


def tree_documents(repository: Repository, commit: Commit, redactor: Redactor | None) -> dict[str, Any]:
    """Every tree of a snapshot, by its node's name; with its number where a node had several."""
    names = member_names([node.node for node in commit.nodes])
    return {
        name: tree_document(TreeReader(repository, ManifestRef(node.digest, node.size, None)), redactor)
        for name, node in zip(names, commit.nodes, strict=True)
    }


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

"""Takes snapshots for ever, until it is killed: `storage_kill_child.py REPOSITORY SEED`.

Prints a line when it begins and one for each snapshot that exists.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from storage_doubles import random_pages, take, text_pages

from cw_snapshot.storage.repository import Repository

if __name__ == "__main__":
    repository, seed = Repository.open(sys.argv[1]), int(sys.argv[2])
    common = random_pages(100, 1)
    print("ready", flush=True)
    for number in range(1_000_000):
        own = random_pages(60, seed * 1000 + number) + text_pages(60, seed * 1000 + number)
        made = take(repository, {"rank-0": [(0, common + own)], "rank-1": [(1 << 40, own + common)]})
        print(made.snapshot, flush=True)

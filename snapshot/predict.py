"""Predicting what a take will cost: the model, from facts about the job and the machine's pace.

A pause is the sum of what its parts cost. The constants below are a least-error fit to the pauses
of 40 jobs that have much of one or two things, with criu 4.1 on Linux 6.18 (2 cores, AMD EPYC); the
parts that each is about are those in which these pauses differed. Of another machine the
calibration (`machine_pace`) knows the pace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

_BASE_SECONDS = 0.0075
"""What every pause has: criu freezes and ends (4 ms), its images and the files are looked at."""
_PROCESS_SECONDS = 0.0023
"""criu's parasite and files of one process, and the calls that make its shadow."""
_THREAD_SECONDS = 0.00023
"""Stopping, seizing and dumping one more thread."""
_DESCRIPTOR_SECONDS = 0.000026
"""criu fetches each descriptor and writes it down."""
_CONNECTION_SECONDS = 0.0004
"""criu puts each connected TCP socket into repair mode and reads its queues."""
_MAPPING_SECONDS = 0.000005
"""criu parses and dumps each mapping, and the fork makes it again."""
_BUSY = 0.7
"""A job that computes on all processors has left nothing of the kernel's and criu's work in their caches:
DDP jobs of 9 processes paused 1.7 times as long as idle processes of that shape."""
_ENTRY_SECONDS_PER_BYTE = 0.002 / (1 << 30)
"""Without PAGEMAP_SCAN criu looks at each page of each private mapping, also of those that are only
reserved; the mask makes them absent, and no fewer."""
_COLD_TABLES = 1.4
"""The page tables of a large job are in no cache, those of the calibration are."""
_HUGE_PAGE_PAGES = 18
"""A huge page costs a fork as much as so many small ones: one entry, and the page table that is
kept for splitting it (mm/huge_memory.c, copy_huge_pmd). 1 GiB: 1 to 2 ms."""
_PINNED_COPIES = 3
"""The kernel copies pinned pages inside fork one by one (mm/memory.c, copy_present_page), and splits
huge ones first: 1 GiB in 1013 ms, a third of the rate at which a file in memory is written."""
_SHARED_COPIES = 1.7
"""criu reads shared memory through a mapping of its own and writes it to its images in memory."""
_CARRIED_COPIES = 1.5
"""We read files on a tmpfs and private pages of hugetlbfs into memory."""

_MiB = 1 << 20


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast this machine does what a pause is made of."""

    page_seconds: float = 68e-9
    """fork, for each 4 KiB page of a small process."""
    byte_seconds: float = 0.33e-3 / _MiB
    """Writing new pages of a file in memory: about 3 GiB/s."""
    look_seconds: float = 6.7e-6
    """Reading /proc/PID/stat, which stands for all that criu asks of the kernel."""
    cores: int = 1
    """Forks of several processes run at the same time."""
    measured: bool = False
    """False: these are the constants above, of the machine on which the model was made."""

    @property
    def factor(self) -> float:
        """The kernel's pace in everything that is not copying, against the machine of the model."""
        return self.look_seconds / Pace().look_seconds


@dataclass(frozen=True, slots=True)
class ForkSize:
    """What a fork of one process has to copy."""

    small_pages: int
    """Present or swapped 4 KiB pages of private memory that no huge page holds."""
    huge_pages: int
    """Of 2 MiB."""
    pid: int = 0
    pinned_bytes: int = 0
    """Of its private memory, pinned for DMA (VmPin): copied, not shared."""

    def seconds(self, pace: Pace) -> tuple[float, float, float]:
        """For the small pages, the huge ones and the copies of the pinned ones."""
        return (
            self.small_pages * _COLD_TABLES * pace.page_seconds,
            self.huge_pages * _HUGE_PAGE_PAGES * _COLD_TABLES * pace.page_seconds,
            self.pinned_bytes * _PINNED_COPIES * pace.byte_seconds,
        )

    def collapsed(self, ranges: int, small_pages: int) -> ForkSize:
        """As it would be with so many more huge pages in the place of so many small ones."""
        small = max(0, self.small_pages - small_pages)
        return replace(self, small_pages=small, huge_pages=self.huge_pages + ranges)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the cost of a take depends on, of a whole tree."""

    processes: int
    threads: int
    descriptors: int
    connections: int
    """Connected TCP sockets."""
    mappings: int
    forks: tuple[ForkSize, ...]
    """Of each process."""
    private_bytes: int
    """Private memory; what forked processes still share counts once."""
    shared_bytes: int
    """Shared memory and deleted files, which criu copies during the pause; each object once."""
    carried_bytes: int
    """Writable files on a tmpfs and private hugetlbfs pages, which we copy during the pause."""
    reserved_bytes: int = 0
    """Private mappings, present or not, on a kernel without PAGEMAP_SCAN; else 0."""
    queues: int = 0
    """Descriptors of pipes and sockets, whose content criu writes into its images."""
    busy: float = 0.0
    """Share of the processors that the job uses, 0 to 1."""
    page_table_bytes: int = 0
    """VmPTE of all processes. Told, not reckoned with: shared memory and huge pages have tables too,
    which a fork does not copy (mm/memory.c, vma_needs_copy) or that are empty."""

    @property
    def small_pages(self) -> int:
        return sum(fork.small_pages for fork in self.forks)

    @property
    def huge_pages(self) -> int:
        return sum(fork.huge_pages for fork in self.forks)

    @property
    def pinned_bytes(self) -> int:
        return sum(fork.pinned_bytes for fork in self.forks)


@dataclass(frozen=True, slots=True)
class PauseParts:
    """Seconds of the pause by what they are spent on."""

    base: float
    processes: float
    threads: float
    descriptors: float
    connections: float
    mappings: float
    page_tables: float
    huge_pages: float
    pinned: float
    shared: float
    carried: float
    reserved: float = 0.0
    """criu's look at each page that might be there, on kernels before 6.7."""

    @property
    def total(self) -> float:
        return float(sum(getattr(self, part.name) for part in fields(self)))

    def times(self, factor: float) -> PauseParts:
        return PauseParts(*(factor * getattr(self, part.name) for part in fields(self)))


@dataclass(frozen=True, slots=True)
class Rates:
    """What earlier takes tell about the next one, or what is assumed without them."""

    bytes_per_second: float
    """Seen, from the end of the pause to the commit."""
    source: str
    """Where that is from, as the user reads it."""
    stored_share: float | None = None
    """Stored of seen bytes; None when no earlier take tells."""
    pause_factor: float = 1.0
    """Actual against modelled pauses of this job."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a take of a tree is expected to cost."""

    facts: JobFacts
    pace: Pace
    rates: Rates
    parts: PauseParts
    durable_seconds: float
    """From the command's beginning to the commit."""

    @property
    def pause_seconds(self) -> float:
        return self.parts.total

    @property
    def read_bytes(self) -> int:
        """What is read and hashed."""
        return self.facts.private_bytes + self.copied_bytes

    @property
    def copied_bytes(self) -> int:
        """What is copied during the pause and held in memory until it is stored."""
        return self.facts.shared_bytes + self.facts.carried_bytes

    @property
    def stored_most_bytes(self) -> int:
        """Nothing is known to the repository and nothing can be compressed."""
        return self.read_bytes

    @property
    def stored_bytes(self) -> int | None:
        """As much of it as earlier takes of the job have stored; None without them."""
        share = self.rates.stored_share
        return None if share is None else round(share * self.read_bytes)

    @property
    def extra_memory_bytes(self) -> int:
        """The most that shadows can cost: the job rewrites everything while they live. Pinned memory
        is copied for certain."""
        return self.facts.private_bytes

    def to_json(self) -> dict[str, Any]:
        facts = asdict(self.facts)
        del facts["forks"]
        return {
            **facts,
            "small_pages": self.facts.small_pages,
            "huge_pages": self.facts.huge_pages,
            "pinned_bytes": self.facts.pinned_bytes,
            "pause_seconds": round(self.pause_seconds, 4),
            "pause_parts_seconds": {k: round(v, 6) for k, v in asdict(self.parts).items()},
            "machine": {**asdict(self.pace), "factor": round(self.pace.factor, 3)},
            "durable_seconds": round(self.durable_seconds, 3),
            "rates": asdict(self.rates),
            "read_bytes": self.read_bytes,
            "copied_bytes": self.copied_bytes,
            "stored_bytes": self.stored_bytes,
            "stored_most_bytes": self.stored_most_bytes,
            "extra_memory_bytes": self.extra_memory_bytes,
        }


_BEFORE_AND_AFTER_SECONDS = 0.1
"""Of a take beside the pause and the pages: preflight, criu's start, the commit."""
_BEFORE_AND_AFTER_OF_PROCESS = 0.015


def parallel(costs: Sequence[float], cores: int) -> float:
    """Seconds until works of these lengths are done on so many cores, each work on one of them: no
    less than the longest and than the sum shared out evenly."""
    return max([sum(costs) / max(1, cores), *costs], default=0.0)


def pause_parts(facts: JobFacts, pace: Pace) -> PauseParts:
    """What the pause is made of."""
    forks = [fork.seconds(pace) for fork in facts.forks]
    total = sum(map(sum, forks))
    # Each kind's share of the time that the forks take together.
    together = parallel([sum(fork) for fork in forks], pace.cores) / total if total else 0.0
    small, huge, pinned = (together * sum(fork[kind] for fork in forks) for kind in range(3))
    kernel = pace.factor * (1 + _BUSY * facts.busy)
    return PauseParts(
        base=kernel * _BASE_SECONDS,
        processes=kernel * _PROCESS_SECONDS * facts.processes,
        threads=kernel * _THREAD_SECONDS * max(0, facts.threads - facts.processes),
        descriptors=kernel * _DESCRIPTOR_SECONDS * facts.descriptors,
        connections=kernel * _CONNECTION_SECONDS * facts.connections,
        mappings=kernel * _MAPPING_SECONDS * facts.mappings,
        page_tables=small,
        huge_pages=huge,
        pinned=pinned,
        shared=_SHARED_COPIES * pace.byte_seconds * facts.shared_bytes,
        carried=_CARRIED_COPIES * pace.byte_seconds * facts.carried_bytes,
        reserved=kernel * _ENTRY_SECONDS_PER_BYTE * facts.reserved_bytes,
    )


def predict(facts: JobFacts, pace: Pace, rates: Rates, spent_seconds: float = 0.0) -> Prediction:
    """What a take of such a job costs on such a machine.

    :param spent_seconds: of the take, already.
    """
    parts = pause_parts(facts, pace).times(rates.pause_factor)
    work = spent_seconds + _BEFORE_AND_AFTER_SECONDS + _BEFORE_AND_AFTER_OF_PROCESS * facts.processes
    read = facts.private_bytes + facts.shared_bytes + facts.carried_bytes
    durable = work + parts.total + read / rates.bytes_per_second
    return Prediction(facts, pace, rates, parts, durable)

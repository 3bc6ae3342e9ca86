"""Tables and sizes as text."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(count: float) -> str:
    """Bytes as a person reads them."""
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return ""


def printable(text: str) -> str:
    """A text without control characters: what a job is called must not steer a terminal."""
    return "".join(c if c.isprintable() else " " if c == "\t" else "?" for c in text)


def cut(text: str, longest: int) -> str:
    """At most so many characters."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; never cut when stdout is not a terminal."""
    from rich.console import Console
    from rich.table import Table

    rows = [[printable(cell) for cell in row] for row in rows]
    console = Console(soft_wrap=True, highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, show_edge=False)
    for index, head in enumerate(heads):
        table.add_column(head, no_wrap=True, overflow="ellipsis" if index == len(heads) - 1 else "fold")
    for row in rows:
        table.add_row(*row)
    if not console.is_terminal:
        widths = [max(len(r[i]) for r in [heads, *rows]) for i in range(len(heads))]
        console.width = sum(widths) + 2 * len(widths)
    console.print(table)

"""Reading chunks back: one ranged read, then decompress and verify each chunk in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cw_snapshot.storage.backend import Backend
from cw_snapshot.storage.chunkids import ID_BYTES, chunk_id
from cw_snapshot.storage.codec import Decompressor
from cw_snapshot.storage.errors import ChunkDamagedError
from cw_snapshot.storage.index import ChunkIndex
from cw_snapshot.storage.layout import pack_name
from cw_snapshot.storage.pages import Bytes
from cw_snapshot.storage.plan import ChunkTable, Read


class Fetcher:
    """Reads the chunks of a table. One per thread."""

    def __init__(self, backend: Backend, index: ChunkIndex, table: ChunkTable, key: bytes) -> None:
        self._backend = backend
        self._index = index
        self._table = table
        self._key = key
        self._decompressor = Decompressor()

    def chunks(
        self, read: Read, on_damage: Callable[[ChunkDamagedError], None] | None = None
    ) -> Iterator[tuple[int, Bytes]]:
        """Row and bytes of every chunk of `read`. What comes out has the right hash, always.

        :param on_damage: called for a damaged chunk, which is then left out; without it it is raised.
        """
        name = pack_name(self._index.packs[read.pack])
        data = memoryview(self._backend.get_range(name, read.offset, read.length))
        table, rows = self._table, slice(read.first, read.last)
        ids = table.ids[rows].tobytes()
        columns = (table.offset, table.stored, table.raw, table.codec)
        values = zip(*(column[rows].tolist() for column in columns), strict=True)
        for number, (offset, stored, raw, codec) in enumerate(values):
            expected = ids[ID_BYTES * number : ID_BYTES * (number + 1)]
            begin = offset - read.offset
            try:
                chunk = self._decompressor.decompress(data[begin : begin + stored], codec, raw)
                if chunk_id(chunk, self._key) != expected:
                    raise ValueError("its bytes do not have the hash that is its id")
            except ValueError as error:
                damage = ChunkDamagedError(name=name, chunk=expected.hex(), what=str(error))
                if on_damage is None:
                    raise damage from error
                on_damage(damage)
                continue
            yield read.first + number, chunk

"""Blocks that hold little that is still wanted are written again, and so are too many tiny ones.

A small file that changed goes into a new block; its bytes in the old one are dead, yet the old block stays as long as
one live file needs it. And each copy adds a block, however small. So when a tree is finished (and it did change):

* a kept block less than half of which this tree names is left: what is live in it is read, verified, and packed anew;
* so are all blocks below ``TINY`` bytes, once there are ``MANY`` of them.

Hence a tree never names more than twice the bytes of its small files plus ``MANY`` tiny blocks, and a byte is copied
only when at least another one is freed by it. Chunks of large files are wanted whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nylorun.blobs import records
from nylorun.blobs.cutting import BLOCK_MIN, SMALL
from nylorun.blobs.packer import Packer
from nylorun.blobs.reader import TreeReader

TINY = BLOCK_MIN // 4
MANY = 32


@dataclass(frozen=True, slots=True)
class Survey:
    """What kept records name: blobs with their sizes, the live bytes of each block, blobs of large files."""

    kept: dict[bytes, int]
    live: dict[bytes, int]
    whole: frozenset[bytes]

    @classmethod
    def of(cls, raws: Iterable[bytes]) -> Survey:
        """One pass."""
        kept: dict[bytes, int] = {}
        live: dict[bytes, int] = {}
        whole: set[bytes] = set()
        head, ref_at = records.HEAD.unpack_from, records.REF.unpack_from
        begin = records.HEAD.size + records.SHA256
        for raw in raws:
            _, kind, flags, _, _, _, path, stat = head(raw)
            if kind != records.FILE or flags & records.HARDLINK:
                continue
            at = begin + path + stat
            (count,) = records.COUNT.unpack_from(raw, at)
            at += records.COUNT.size
            if not count or records.is_pending(raw, at):
                continue
            for place in range(at, at + count * records.REF.size, records.REF.size):
                name, _, length, size = ref_at(raw, place)
                kept[name] = size
                if count > 1 or length > SMALL:
                    whole.add(name)
                else:
                    live[name] = live.get(name, 0) + length
        return cls(kept, live, frozenset(whole))

    def victims(self) -> frozenset[bytes]:
        """The blocks to pack anew."""
        blocks = {name: live for name, live in self.live.items() if name not in self.whole}
        tiny = {name for name in blocks if self.kept[name] < TINY}
        thin = {name for name, live in blocks.items() if live * 2 < self.kept[name]}
        return frozenset(thin | tiny if len(tiny) >= MANY else thin)


def repacked(raws: Iterable[bytes], victims: frozenset[bytes], previous: TreeReader, packer: Packer) -> Iterator[bytes]:
    """The records, those of files in ``victims`` with new places."""
    for raw in raws:
        fixed = records.head(raw)
        refs = list(records.refs_of(raw, fixed)) if fixed.kind == records.FILE else ()
        if len(refs) == 1 and refs[0][0] in victims:
            name, offset, length, size = refs[0]
            data = previous.blob(name.hex(), size)[offset : offset + length]
            at = records.sha256_at(fixed)
            yield records.with_refs(raw, fixed, packer.add(data, raw[at : at + records.SHA256]))
        else:
            yield raw

"""The normaliser's rules, read out of the compiled table inside a model.

SentencePiece compiles its rules into a Darts double array (a trie over UTF-8 bytes) that is followed by the images, each ended by
a zero byte. The fast path needs to know the rules: one character to a non-empty image is a change that cuts can live with.

Source: darts-clone's double array format (unit layout: offset, label, leaf bit); SentencePiece normalizer.cc.
"""

from __future__ import annotations

from tokpipe.errors import TokenizerError


def one_character_rules(charsmap: bytes) -> dict[str, str] | None:
    """The rules character -> image, or None if a rule has a longer key or an empty image.

    Raises:
        TokenizerError: if the table is damaged.
    """
    if not charsmap:
        return {}
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) <= 4 or size % 4 or size < 4 or 4 + size > len(charsmap):
        raise TokenizerError(f"the model's normaliser table is damaged: {len(charsmap):,} bytes, trie of {size:,} bytes")
    units = memoryview(charsmap[4 : 4 + size]).cast("I")
    images = charsmap[4 + size :]
    rules: dict[str, str] = {}
    # Keys in byte order, depth first: a table of thousands of long rules is given up at the first of them.
    pending = [(_children(units, 0), b"")]
    while pending:
        node, key = pending.pop()
        for label in range(255, 0, -1):
            child = node ^ label
            if child >= len(units) or units[child] & 0x800000FF != label:
                continue
            longer = key + bytes([label])
            if len(longer) > 4:
                return None
            below = _children(units, child)
            if units[child] >> 8 & 1:
                start = units[below] & 0x7FFFFFFF
                image = images[start : images.index(b"\0", start)].decode()
                if not _is_one_character(longer) or not image:
                    return None
                rules[longer.decode()] = image
            pending.append((below, longer))
    return rules


def _children(units: memoryview, node: int) -> int:
    """Where a node's children start; child `label` lies at this index xor `label`, its value at the index itself."""
    unit: int = units[node]
    return node ^ (unit >> 10 << ((unit & 0x200) >> 6))


def _is_one_character(key: bytes) -> bool:
    return len(key.decode(errors="replace")) == 1

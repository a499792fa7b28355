"""One piece of a tokenize task: a training shard, a held-out shard and a reject file, published together by one receipt."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokpipe.build.config import BuildConfig
from tokpipe.build.count_task import num_text_bytes
from tokpipe.build.ends import Ends
from tokpipe.build.held_out import held_out_mask, take_documents
from tokpipe.build.receipts import Receipt
from tokpipe.build.rejects import PieceRejects, places
from tokpipe.build.store import Attempt
from tokpipe.corpus import TextBatch
from tokpipe.engine.base import Counters
from tokpipe.shards import BIN_SUFFIX, IDX_SUFFIX, ShardEntry, ShardWriter
from tokpipe.tokenizer import Tokenizer, document_hashes, self_check_rows

MAX_NAME = 80
# A file name has at most 255 bytes, and number, suffix and the mark of an unfinished file take about 50.
MAX_NAME_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceName:
    """Which piece of which task of which plan."""

    plan: str
    stage: str
    task: int
    piece: int
    source: str

    @property
    def shard(self) -> str:
        """`shards/hi-00003-000`; characters of the source that make awkward file names become `_` (the task keeps it unique)."""
        slug = re.sub(r"[^\w.-]", "_", self.source)[:MAX_NAME]
        slug = slug.encode()[:MAX_NAME_BYTES].decode(errors="ignore").lstrip(".-") or "_"
        return f"shards/{slug}-{self.task:05d}-{self.piece:03d}"

    @property
    def rejects(self) -> str:
        """`rejects/00003-000.jsonl`."""
        return f"rejects/{self.task:05d}-{self.piece:03d}.jsonl"


class PieceWriter:
    """Encodes batches into the shards of one piece. Call `abort` at the end in any case: without `finish` nothing stays."""

    def __init__(
        self, name: PieceName, attempt: Attempt, rejects: PieceRejects, tokenizer: Tokenizer, ends: Ends, config: BuildConfig
    ) -> None:
        self.name, self.attempt, self.rejects = name, attempt, rejects
        self._tokenizer, self._ends, self._config = tokenizer, ends, config
        self.done = Counters()
        self._checked_bytes = 0
        self._training = ShardWriter(attempt.path(name.shard), dtype=tokenizer.dtype)
        self._held_out = ShardWriter(attempt.path(f"{name.shard}-held-out"), dtype=tokenizer.dtype)
        rejects.next_piece(attempt.path(name.rejects))

    def abort(self) -> None:
        """Remove what was not finished; does nothing after `finish`."""
        self._training.abort()
        self._held_out.abort()

    def add(self, batch: TextBatch, input_bytes: int) -> Counters:
        """Encode a batch, check a sample of it, write it; returns what was done. `input_bytes` of the split were read for it.

        Raises:
            SelfCheckError: if a document's ids are not SentencePiece's.
        """
        hashes = document_hashes(batch.texts)
        ids, offsets = self._tokenizer.encode_batch(batch.texts, bos_id=self._ends.bos_id, eos_id=self._ends.eos_id)
        self._check(batch, hashes, ids, offsets)
        mask = held_out_mask(hashes, self._config.validation)
        if mask.any():
            self._held_out.append(*take_documents(ids, offsets, mask))
            self._training.append(*take_documents(ids, offsets, ~mask))
        else:
            self._training.append(ids, offsets)
        done = Counters(
            documents=len(batch.texts),
            tokens=len(ids),
            text_bytes=input_bytes,
            decoded_bytes=num_text_bytes(batch.texts),
        )
        self.done = self.done + done
        return done

    def _check(self, batch: TextBatch, hashes: NDArray[np.uint64], ids: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        rows = self_check_rows(hashes, self._config.self_check)
        if not len(rows) and not self._checked_bytes and self._config.self_check and len(hashes):
            rows = np.array([np.diff(offsets).argmin()])  # the smallest piece has one document checked, too, its shortest
        if len(rows):
            self._checked_bytes += self._tokenizer.self_check(
                batch.texts,
                ids,
                offsets,
                rows,
                bos_id=self._ends.bos_id,
                eos_id=self._ends.eos_id,
                place=batch.place,
            )

    def finish(self, cursor: tuple[int, ...]) -> Receipt:
        """Publish shards and rejects; the receipt that names them is the caller's to publish."""
        name = self.name
        self.rejects.close()
        files = (self.attempt.publish(name.rejects),) if self.rejects.counts else ()
        shards = [
            self._publish(self._training, name.shard, held_out=False),
            self._publish(self._held_out, f"{name.shard}-held-out", held_out=True),
        ]
        return Receipt(
            plan=name.plan,
            stage=name.stage,
            task=name.task,
            files=files,
            shards=tuple(shard for shard in shards if shard is not None),
            num_records=self.rejects.num_records,
            num_documents=self.done.documents,
            num_tokens=self.done.tokens,
            text_bytes=self.done.decoded_bytes,
            input_bytes=self.done.text_bytes,
            blank=self.rejects.blank,
            rejects=dict(sorted(self.rejects.counts.items())),
            places=places(self.rejects),
            checked_bytes=self._checked_bytes,
            cursor=cursor,
        )

    def _publish(self, writer: ShardWriter, name: str, *, held_out: bool) -> ShardEntry | None:
        info = writer.commit()
        if info is None:
            return None
        stands = self.attempt.publish(name, (BIN_SUFFIX, IDX_SUFFIX))
        return ShardEntry(
            name=stands,
            source=self.name.source,
            held_out=held_out,
            num_tokens=info.num_tokens,
            num_documents=info.num_documents,
            bin_bytes=info.bin_bytes,
            idx_bytes=info.idx_bytes,
            bin_xxh3=info.bin_xxh3,
            idx_xxh3=info.idx_xxh3,
        )

"""Text to shards: one task reads one split and publishes it piece by piece, so that a restart goes on after the last piece."""

from __future__ import annotations

import functools
from dataclasses import replace

from tokpipe.build.ends import document_ends
from tokpipe.build.piece import PieceName, PieceWriter
from tokpipe.build.plan import TOKENIZER, Plan, check_split, read_splits, split_sizes
from tokpipe.build.receipts import Receipt, add_receipts, piece_name, read_pieces
from tokpipe.build.rejects import PieceRejects, check_task
from tokpipe.build.stage import InputShare, StageTasks
from tokpipe.build.store import Attempt, Store
from tokpipe.corpus import Cursor, read_split
from tokpipe.engine.base import Counters, Report
from tokpipe.tokenizer import Tokenizer

TOKENIZE = "tokenize"


class TokenizeTasks(StageTasks):
    """Encode the documents of one split."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self._splits = read_splits(store, plan)
        super().__init__(store, plan, TOKENIZE, split_sizes(self._splits))

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        """Loaded by the first task and kept, with its table, for the later ones."""
        return Tokenizer.load(self.store.local(TOKENIZER))

    def name(self, index: int) -> str:
        """Stage, number, size and source."""
        return f"{super().name(index)} of {self._splits[index].source}"

    def run(self, index: int, report: Report) -> None:
        """Do the task; its own receipt repeats what those of its pieces said, so they go."""
        super().run(index, report)
        # The last one first, so that a removal that is cut short is found again.
        for piece in reversed(range(len(read_pieces(self.store, self.stage, index, self.plan.hash)))):
            self.store.remove(piece_name(self.stage, index, piece))

    def work(self, index: int, attempt: Attempt, report: Report) -> Receipt:
        """Go on after the last published piece; publish the others."""
        done = read_pieces(self.store, self.stage, index, self.plan.hash)
        for piece in done:
            report(_counters(piece))
        rejects = PieceRejects()
        try:
            done += self._pieces(index, attempt, rejects, done, report)
        finally:
            rejects.close()
        return add_receipts(done, plan=self.plan.hash, stage=self.stage, task=index)

    def _pieces(self, index: int, attempt: Attempt, rejects: PieceRejects, done: list[Receipt], report: Report) -> list[Receipt]:
        split, config = self._splits[index], self.config
        name = PieceName(plan=self.plan.hash, stage=self.stage, task=index, piece=len(done), source=split.source)
        ends = document_ends(self._tokenizer, config)
        share = InputShare(split.num_bytes - sum(piece.input_bytes for piece in done))
        made: list[Receipt] = []
        start = Cursor(*done[-1].cursor) if done else Cursor(0, 0)
        writer = PieceWriter(name, attempt, rejects, self._tokenizer, ends, config)
        try:
            for batch in read_split(split, config.corpus, rejects, start=start):
                report(writer.add(batch, share.take(batch.num_input_bytes)))
                check_task(rejects, writer.done.text_bytes, self.plan)
                if writer.done.decoded_bytes >= config.piece_bytes:
                    check_split(self.store, self.plan, split)
                    made.append(self._put_piece(name, writer.finish(tuple(batch.cursor))))
                    name = replace(name, piece=name.piece + 1)
                    writer = PieceWriter(name, attempt, rejects, self._tokenizer, ends, config)
            report(Counters(text_bytes=share.left))
            check_split(self.store, self.plan, split)
            made.append(replace(writer.finish(()), input_bytes=writer.done.text_bytes + share.left))
        finally:
            writer.abort()
        return made

    def _put_piece(self, name: PieceName, receipt: Receipt) -> Receipt:
        """Publish a piece's receipt; if another attempt at this task was first, its piece stands and is taken over."""
        where = piece_name(name.stage, name.task, name.piece)
        return Receipt.from_bytes(self.store.put_receipt(where, receipt.to_bytes()), where)


def _counters(piece: Receipt) -> Counters:
    return Counters(
        documents=piece.num_documents, tokens=piece.num_tokens, text_bytes=piece.input_bytes, decoded_bytes=piece.text_bytes
    )

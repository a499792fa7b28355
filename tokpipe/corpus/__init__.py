"""Raw text: inventory, splits, readers, rejects."""

from tokpipe.corpus.batches import Cursor, TextBatch
from tokpipe.corpus.config import CorpusConfig
from tokpipe.corpus.inventory import Inventory
from tokpipe.corpus.listing import read_inventory
from tokpipe.corpus.readers import BEGINNING, read_split
from tokpipe.corpus.rejects import Reject, RejectLog
from tokpipe.corpus.split_table import Part, Split, Splits, plan_splits, read_row_groups
from tokpipe.corpus.unchanged import check_unchanged

__all__ = [
    "BEGINNING",
    "CorpusConfig",
    "Cursor",
    "Inventory",
    "Part",
    "Reject",
    "RejectLog",
    "Split",
    "Splits",
    "TextBatch",
    "check_unchanged",
    "plan_splits",
    "read_inventory",
    "read_row_groups",
    "read_split",
]

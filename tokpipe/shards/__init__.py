"""Ids to disk: the on-disk contract."""

from tokpipe.shards.durable import fsync_folder, side_path, write_durably
from tokpipe.shards.folder import DatasetFiles, open_files
from tokpipe.shards.format import (
    BIN_SUFFIX,
    IDX_SUFFIX,
    SIDE_SUFFIX,
    TokenDtype,
    bin_num_bytes,
    dtype_for_vocab,
    idx_num_bytes,
    token_dtype,
)
from tokpipe.shards.manifest import (
    MANIFEST_NAME,
    MANIFEST_VERSION,
    Manifest,
    ShardEntry,
    TokenizerEntry,
    dataset_id,
    read_manifest,
    write_manifest,
)
from tokpipe.shards.reader import Shard
from tokpipe.shards.scan import Problem
from tokpipe.shards.summary import SourceTotals, StoredDocument, describe, read_document, source_totals, summarize
from tokpipe.shards.verify import VerifyReport, entries_of, verify_dataset, verify_folder, verify_shard
from tokpipe.shards.writer import ShardInfo, ShardWriter

__all__ = [
    "BIN_SUFFIX",
    "IDX_SUFFIX",
    "MANIFEST_NAME",
    "MANIFEST_VERSION",
    "SIDE_SUFFIX",
    "DatasetFiles",
    "Manifest",
    "Problem",
    "Shard",
    "ShardEntry",
    "ShardInfo",
    "ShardWriter",
    "SourceTotals",
    "StoredDocument",
    "TokenDtype",
    "TokenizerEntry",
    "VerifyReport",
    "bin_num_bytes",
    "dataset_id",
    "describe",
    "dtype_for_vocab",
    "entries_of",
    "fsync_folder",
    "idx_num_bytes",
    "open_files",
    "read_document",
    "read_manifest",
    "side_path",
    "source_totals",
    "summarize",
    "token_dtype",
    "verify_dataset",
    "verify_folder",
    "verify_shard",
    "write_durably",
    "write_manifest",
]

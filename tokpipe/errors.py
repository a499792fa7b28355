"""Every error that tokpipe raises on purpose.

A bad file, recipe or environment is a `TokpipeError` that also inherits the builtin a caller would expect; a bad argument to
a pure function stays a plain `ValueError`. Each takes one message: what, where, expected against found, what to do next. One
argument, so that it survives pickling out of a worker process. The command line prints the message and exits with 1.

    TokpipeError
    ├── CorpusError
    │   ├── UnreadableFileError (OSError)        a truncated stream, a Parquet file without its footer
    │   ├── MissingColumnError (LookupError)     no such text column; the message lists those that exist
    │   ├── TooManyRejectsError (ValueError)     more records refused than --max-rejects allows
    │   └── CorpusChangedError (ValueError)      the inventory is not the one that the plan was made from
    ├── TokenizerError (ValueError)              a model that cannot be loaded or used
    │   ├── TrainingError                        settings or text that no tokenizer can be trained from
    │   └── SelfCheckError                       fast ids differ from SentencePiece: never expected, never ignored
    ├── ShardError
    │   ├── ShardFormatError (ValueError)        bytes that break docs/format.md
    │   └── MissingShardError (FileNotFoundError)
    ├── DatasetError
    │   ├── ManifestError (ValueError)           dataset.json is missing, unreadable, or contradicts itself
    │   └── VerificationError (ValueError)       the files do not keep what the manifest promises
    ├── BuildError
    │   ├── SettingsChangedError (ValueError)    the same --out with other settings
    │   ├── OutputLockedError (OSError)          another build holds --out
    │   ├── DiskSpaceError (OSError)             the output would not fit
    │   ├── TaskFailedError (RuntimeError)       tasks that keep failing, by name, with the reason of each
    │   └── BuildInterruptedError (RuntimeError) Ctrl-C or SIGTERM: finished tasks stay finished
    ├── EngineError (RuntimeError)               Slurm or Ray is absent, or refused
    │   └── MissingExtraError (ImportError)      an optional dependency is not installed; says which extra has it
    ├── PartitionError (ValueError)              a global batch, weights or a world size that cannot be laid out
    │   └── StateMismatchError                   a loader state that belongs to another dataset or plan
    ├── RecipeError (ValueError)                 an unknown key or a wrong type in a TOML recipe
    └── TrainerError (RuntimeError)
        ├── LayoutError (ValueError)             a combination of parallelisms that is impossible or known to be wrong
        └── TrainingStoppedError                 NaN, a loss spike, a lost rank: says step, rank and batch position
"""


class TokpipeError(Exception):
    """Base of every error raised on purpose."""


class CorpusError(TokpipeError):
    """The input text cannot be read as asked."""


class UnreadableFileError(CorpusError, OSError):
    """A file is truncated, damaged, or not what its name says."""


class MissingColumnError(CorpusError, LookupError):
    """A record has no such text column."""


class TooManyRejectsError(CorpusError, ValueError):
    """More records were refused than `--max-rejects` allows."""


class CorpusChangedError(CorpusError, ValueError):
    """The inventory differs from the one the plan was made from."""


class TokenizerError(TokpipeError, ValueError):
    """A tokenizer model cannot be loaded or used."""


class TrainingError(TokenizerError):
    """No tokenizer can be trained from these settings or this text."""


class SelfCheckError(TokenizerError):
    """The fast encoder's ids differ from SentencePiece's."""


class ShardError(TokpipeError):
    """A shard cannot be used."""


class ShardFormatError(ShardError, ValueError):
    """The bytes of a shard break the format."""


class MissingShardError(ShardError, FileNotFoundError):
    """A shard's file is not there."""


class DatasetError(TokpipeError):
    """A dataset folder cannot be used."""


class ManifestError(DatasetError, ValueError):
    """The manifest is missing, unreadable, or contradicts itself."""


class VerificationError(DatasetError, ValueError):
    """The files do not keep what the manifest promises."""


class BuildError(TokpipeError):
    """A build cannot go on."""


class SettingsChangedError(BuildError, ValueError):
    """The output folder belongs to a build with other settings."""


class OutputLockedError(BuildError, OSError):
    """Another process builds into the same folder."""


class DiskSpaceError(BuildError, OSError):
    """The output would not fit on the disk."""


class TaskFailedError(BuildError, RuntimeError):
    """Tasks failed again and again; everything else is done."""


class BuildInterruptedError(BuildError, RuntimeError):
    """The build was asked to stop; finished tasks stay finished."""


class EngineError(TokpipeError, RuntimeError):
    """An engine is absent or refused the work."""


class MissingExtraError(EngineError, ImportError):
    """An optional dependency is not installed."""


class PartitionError(TokpipeError, ValueError):
    """A global batch, weights or world size that cannot be laid out."""


class StateMismatchError(PartitionError):
    """A loader state belongs to another dataset or plan."""


class RecipeError(TokpipeError, ValueError):
    """A recipe holds an unknown key or a value of the wrong type."""


class TrainerError(TokpipeError, RuntimeError):
    """Training cannot start or go on."""


class LayoutError(TrainerError, ValueError):
    """A combination of parallelisms that is impossible or known to be wrong."""


class TrainingStoppedError(TrainerError):
    """Training stopped itself; the message says at which step, rank and batch position."""

"""The `tokpipe` command: a skin over the library. Subcommands are imported when they are used, never for `--help`."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys

import click

from tokpipe import __version__
from tokpipe.errors import BuildInterruptedError, TokpipeError

# name -> (module, attribute, one line of help). The line stands here so that `tokpipe --help` imports no command.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "build": ("tokpipe.cli.build", "build", "Turn a folder of raw text into verified token shards."),
    "tokenize": ("tokpipe.cli.tokenize", "tokenize", "Like build, with an existing tokenizer and no partition."),
    "verify": ("tokpipe.cli.verify", "verify", "Re-read every byte of a dataset and check every promise."),
    "inspect": ("tokpipe.cli.inspect", "inspect", "Summarise a dataset or show one of its documents."),
    "clean": ("tokpipe.cli.clean", "clean", "Remove files that no receipt names."),
    "pull": ("tokpipe.cli.pull", "pull", "Copy a dataset, or a rank's share of it, from an object store."),
    "tokenizer": ("tokpipe.cli.tokenizer", "tokenizer", "Count, train, encode, decode, report, export."),
    "partition": ("tokpipe.cli.partition", "partition", "Lay a dataset out over data-parallel ranks."),
    "sample": ("tokpipe.cli.sample", "sample", "Show the text of one training batch."),
    "plan": ("tokpipe.cli.plan", "plan", "Memory, compute, bubble and token budget of a training run."),
    "train": ("tokpipe.cli.train", "train", "Train the reference model from a recipe."),
    "export": ("tokpipe.cli.export", "export", "Export a checkpoint for Hugging Face transformers."),
}

# Packages that a command may need at once, and the extra that has them; the others are asked for where they are used.
EXTRAS = {"torch": "train", "safetensors": "train", "matplotlib": "train"}


class LazyGroup(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the journey, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        # What is imported stays until the process ends: the collector need not look through it, neither now nor later.
        gc.disable()
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        finally:
            gc.freeze()
            gc.enable()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="tokpipe")
@click.option("-v", "--verbose", count=True, help="More log lines on stderr (-vv for debugging).")
def cli(verbose: int) -> None:
    """From a folder of raw text to the gradient."""
    level = logging.DEBUG if verbose > 1 else logging.INFO
    logging.basicConfig(level=level, format="%(message)s" if verbose < 2 else "%(asctime)s %(name)s: %(message)s")
    if verbose < 2:
        for noisy in ("datasets", "fsspec", "numba", "botocore", "aiobotocore", "s3fs", "filelock", "urllib3"):
            logging.getLogger(noisy).setLevel(logging.WARNING)


def main() -> None:
    """Run the command; a `TokpipeError` becomes its message and exit code 1, never a traceback."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt, BuildInterruptedError) as error:
        click.echo(str(error) or "Interrupted.", err=True)
        sys.exit(1)
    except TokpipeError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        command = next((word for word in sys.argv[1:] if word in COMMANDS), "")
        click.echo(
            f"Error: tokpipe {command} needs {package}, which is not installed. Install the extra: "
            f"pip install 'tokpipe[{EXTRAS[package]}]'",
            err=True,
        )
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output went away (`| head`). Python would complain again while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        # A full disk, a folder that may not be written to: the system's own words; -vv shows where.
        logging.getLogger(__name__).debug("", exc_info=True)
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()

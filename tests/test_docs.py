"""Documents that cannot rot: what the README names exists, and what exists is in the README."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tokpipe.cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "recipes" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> list[tuple[str, click.Command]]:
    """Every command with its full name, those inside groups included."""
    context = click.Context(cli)
    found = []
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found += [(f"{name} {inner}", command.commands[inner]) for inner in sorted(command.commands)]
        else:
            found.append((name, command))
    return found


@pytest.mark.parametrize(("name", "command"), commands())
def test_command_has_help_and_json(name, command):
    assert command.help and len(command.help.split()) > 3
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"tokpipe {name} {option.opts[0]} has no help"
    assert any("--json" in option.opts for option in command.params), f"tokpipe {name} has no --json"


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_in_the_readme(name):
    assert f"`tokpipe {name}`" in README


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_exist(document):
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z0-9-]+)", document.read_text(encoding="utf-8")))
    assert named <= targets, f"{document.name} names {sorted(named - targets)}"


def test_every_document_is_linked_from_the_readme():
    missing = [path.name for path in (ROOT / "docs").glob("*.md") if f"docs/{path.name}" not in README]
    assert not missing

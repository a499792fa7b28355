"""Documents that cannot rot: what the README names exists, and what exists is in the README."""

from __future__ import annotations

import re
import subprocess
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


def test_a_python_package_of_this_name_is_installed_from_the_clone():
    """The one on PyPI is another project."""
    for document in (*DOCUMENTS, ROOT / "recipes" / "ray" / "cluster.md"):
        assert not re.search(r"pip install '?tokpipe", document.read_text(encoding="utf-8")), document.name


@pytest.mark.parametrize(
    ("given", "expected"),
    [([], "CORPUS=/shared/raw"), (["CORPUS=x", "VENV=nowhere"], "run make venv first")],
)
def test_cluster_build_is_not_submitted_without_what_it_needs(given, expected):
    done = subprocess.run(["make", "cluster-build", *given], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert expected in done.stderr


@pytest.mark.parametrize(
    "script", [*(ROOT / "recipes" / "slurm").glob("*.sbatch"), ROOT / "recipes" / "README.md"], ids=lambda p: p.name
)
def test_steps_get_the_cores_of_their_job(script):
    """srun takes --cpus-per-task from the job no more since Slurm 22.05; only one core a task may go without saying."""
    text = script.read_text(encoding="utf-8")
    if "--cpus-per-task=1\n" not in text:
        assert 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK"' in text

"""What a person sees who lacks something: a sentence, never a traceback."""

from __future__ import annotations

import sys

import pytest

from tokpipe.cli.main import main


def say(monkeypatch, capsys, *arguments: str) -> str:
    """Standard error of a command that fails."""
    monkeypatch.setattr(sys, "argv", ["tokpipe", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "export", "sample"])
def test_a_command_without_torch_names_the_extra(command, dataset_writer, tmp_path, monkeypatch, capsys):
    dataset_writer(tmp_path / "data", [("en", False, [40, 60, 33])])
    for module in [name for name in sys.modules if name.startswith(("tokpipe.dataset", "tokpipe.trainer"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    arguments = {"train": ["recipe.toml"], "export": [str(tmp_path), str(tmp_path / "out")], "sample": [str(tmp_path / "data")]}
    said = say(monkeypatch, capsys, command, *arguments[command])
    assert (
        said == f"Error: tokpipe {command} needs torch, which is not installed. Install the extra: pip install 'tokpipe[train]'\n"
    )


def test_a_module_that_no_extra_has_is_a_bug_and_shown_as_one(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tokpipe", "plan"])
    monkeypatch.setitem(sys.modules, "tokpipe.cli.plan", None)
    with pytest.raises(ModuleNotFoundError):
        main()

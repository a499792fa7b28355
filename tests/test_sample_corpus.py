"""The sample corpus is whole or absent: `make demo` builds from whatever folder it finds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "sample_corpus.py"


@pytest.fixture
def script(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("sample_corpus", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["sample_corpus.py", str(tmp_path / "raw"), "--megabytes", "0.2"])
    return module


def stop(folder):
    raise KeyboardInterrupt


def test_an_interrupted_corpus_is_absent_and_the_next_one_whole(script, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(script, "write_unusable", stop)
        script.main()
    assert not (tmp_path / "raw").exists()
    script.main()
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]
    assert sorted(path.name for path in (tmp_path / "raw").iterdir()) == ["README.md", "code", "en", "hi", "mix", "notes"]
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'raw'}: ")

"""The arrows between the rooms, checked: who may import whom, and where each dependency lives."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "tokpipe"

# room -> rooms of tokpipe it may import (itself and errors always). cli may import everything.
MAY_IMPORT = {
    "corpus": set(),
    "tokenizer": set(),
    "shards": set(),
    "engine": set(),
    "estimate": set(),
    "partition": {"shards"},
    "dataset": {"partition", "shards"},
    "trainer": {"dataset", "partition", "shards", "estimate", "tokenizer", "recipe"},
    "build": {"corpus", "tokenizer", "shards", "engine", "partition", "recipe"},
    "recipe": set(),
}
# third-party package -> rooms it may live in
HOMES = {
    "click": {"cli"},
    "sentencepiece": {"tokenizer"},
    "numba": {"tokenizer"},
    "ray": {"engine"},
    "multiprocessing": {"engine", "corpus", "trainer"},
    "torch": {"dataset", "trainer"},
    "tqdm": {"engine"},
}
PURE = {"corpus/splits.py", "shards/format.py", "partition/lanes.py", "partition/order.py", "partition/phases.py", "estimate"}
IMPURE_MODULES = {"os", "pathlib", "time", "random", "multiprocessing", "subprocess", "threading", "io", "shutil"}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def room(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> list[str]:
    """Every module that a file imports at any level, `if TYPE_CHECKING` included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append(node.module or "")
            if node.module == "tokpipe":
                found += [f"tokpipe.{alias.name}" for alias in node.names]
    return found


def test_rooms_import_only_what_they_may():
    wrong = []
    for path in modules():
        here = room(path)
        if here not in MAY_IMPORT:
            continue
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "tokpipe" or len(parts) < 2 or parts[1] in (here, "errors", "urls", "__version__"):
                continue
            if parts[1] not in MAY_IMPORT[here]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_each_dependency_has_one_home():
    wrong = []
    for path in modules():
        for name in imports(path):
            package = name.split(".")[0]
            if package in HOMES and room(path) not in HOMES[package]:
                wrong.append(f"{path.relative_to(ROOT)} imports {package}")
    assert not wrong, "\n".join(wrong)


def test_pure_modules_touch_no_files_clock_or_processes():
    wrong = []
    for path in modules():
        relative = str(path.relative_to(ROOT))
        if not any(relative == pure or relative.startswith(pure + "/") for pure in PURE):
            continue
        wrong += [f"{relative} imports {n}" for n in imports(path) if n.split(".")[0] in IMPURE_MODULES]
    assert not wrong, "\n".join(wrong)


def test_no_module_is_called_utils_or_manager():
    names = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    assert not [p for p in modules() if p.name in names or p.stem.endswith("manager")]


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from tokpipe.cli.main import cli\n"
        "try: cli(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'sentencepiece', 'numba', 'datasets', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "build" in done.stdout


@pytest.mark.parametrize("package", sorted(p.parent.name for p in ROOT.glob("*/__init__.py")))
def test_init_only_reexports_and_all_is_true(package):
    tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.If)
    assert all(isinstance(node, allowed) for node in tree.body)
    exported = [node for node in tree.body if isinstance(node, ast.Assign)]
    names = {alias.asname or alias.name for n in tree.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    names.discard("annotations")
    if names:
        assert exported and set(ast.literal_eval(exported[0].value)) == names

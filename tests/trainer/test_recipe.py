from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from trainings import config_for, write_dataset

from tokpipe.errors import RecipeError
from tokpipe.recipe import fill, read_tables, to_toml
from tokpipe.trainer import read_train_config
from tokpipe.trainer.config import TrainConfig

RECIPES = Path(__file__).parents[2] / "recipes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """Some settings."""

    name: str
    rate: float = 0.5
    steps: int = 1
    flag: bool = False
    pair: tuple[float, float] = (0.1, 0.2)
    names: tuple[str, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)
    kind: Literal["a", "b"] = "a"
    limit: int | str = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """Two tables."""

    first: Inner
    second: Inner = field(default_factory=lambda: Inner(name="default"))


@pytest.fixture
def read(tmp_path):
    def read(text, *overrides):
        path = tmp_path / "recipe.toml"
        path.write_text(text, encoding="utf-8")
        return fill(Outer, read_tables(path, overrides=overrides), where="recipe.toml")

    return read


def test_fill_takes_every_kind_of_value(read):
    filled = read(
        '[first]\nname = "हिन्दी"\nrate = 1\nsteps = 3\nflag = true\npair = [1, 2.5]\nnames = ["x"]\nkind = "b"\nlimit = "many"\n'
        '[first.shares]\n"a b" = 0.5\n'
    )
    assert filled.first == Inner(
        name="हिन्दी", rate=1.0, steps=3, flag=True, pair=(1.0, 2.5), names=("x",), kind="b", limit="many", shares={"a b": 0.5}
    )
    assert filled.second.name == "default"


def test_to_toml_reads_back_as_the_same(read):
    filled = read('[first]\nname = "a\\"b\\\\c\\n\\u0007"\nnames = ["p", "q"]\nrate = 1e-8\nshares = {hi = 0.5}\n')
    assert read(to_toml(filled)) == filled


def test_overrides_beat_the_recipe(read):
    filled = read('[first]\nname = "x"\nsteps = 2', "first.steps=7", "first.kind=b", 'second.name="y"', "first.shares.hi=0.25")
    assert (filled.first.steps, filled.first.kind, filled.second.name) == (7, "b", "y")
    assert filled.first.shares == {"hi": 0.25}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[first]\nname = "x"\nstep = 3', r"unknown key 'step' in \[first\]; did you mean 'steps'\? Known there: name, rate"),
        ('[frist]\nname = "x"', r"unknown key 'frist' as a table; did you mean 'first'\?"),
        ('[first]\nname = "x"\nqqqq = 3', r"unknown key 'qqqq' in \[first\]; Known there"),
        ("[first]\nsteps = 2", r"first.name is missing and has no default; it is of type str"),
        ("", r"first.name is missing"),
        ('[first]\nname = "x"\nsteps = 1.5', r"first.steps must be int, got 1.5"),
        ('[first]\nname = "x"\nsteps = true', r"first.steps must be int, got True"),
        ('[first]\nname = "x"\nrate = true', r"first.rate must be float, got True"),
        ('[first]\nname = "x"\nflag = 1', r"first.flag must be bool, got 1"),
        ('[first]\nname = "x"\nkind = "c"', r"first.kind must be one of 'a', 'b', got 'c'"),
        ('[first]\nname = "x"\npair = [1]', r"first.pair must be tuple\[float, float\], got \[1\]"),
        ('[first]\nname = "x"\nnames = "abc"', r"first.names must be tuple"),
        ('[first]\nname = "x"\nshares = 1', r"first.shares must be dict"),
        ('[first]\nname = "x"\nlimit = 1.5', r"first.limit must be int \| str"),
        ('[first]\nname = "x"\nsteps = 0', r"recipe.toml: \[first\] steps must be at least 1, got 0"),
        ("name = 3", r"name stands outside any table"),
        ("[first", r"is not valid TOML"),
    ],
)
def test_a_wrong_recipe_names_key_place_and_remedy(read, text, message):
    with pytest.raises(RecipeError, match=message):
        read(text)


@pytest.mark.parametrize("override", ["first.steps", "steps=3", "=3"])
def test_a_malformed_override_is_refused(read, override):
    with pytest.raises(RecipeError, match="is not of the form"):
        read('[first]\nname = "x"', override)


def test_an_override_below_a_value_is_refused(read):
    with pytest.raises(RecipeError, match="steps is a value, not a table"):
        read('[first]\nname = "x"\nsteps = 3', "first.steps.more=3")


def test_a_recipe_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_bytes(b'[first]\nname = "\xff"')
    with pytest.raises(RecipeError, match=r"recipe.toml: is not valid TOML"):
        read_tables(path)


def test_a_contradiction_between_tables_names_the_recipe_alone(tmp_path):
    tables = read_tables(RECIPES / "tiny-3d-cpu.toml", overrides=["data.global_batch_size=7", "model.vocab_size=512"])
    with pytest.raises(RecipeError, match=r"^here: data.global_batch_size 7 is not a multiple"):
        fill(TrainConfig, tables, where="here")


def test_a_missing_recipe_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="there is no such recipe"):
        read_tables(tmp_path / "none.toml")


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_of_the_repository_parses(path, tmp_path):
    data = write_dataset(tmp_path / "data")
    world_size = {"tiny-3d-cpu": 8, "llama-7b-64xh100": 64}.get(path.stem, 1)
    config = read_train_config(path, overrides=(f'data.path="{data}"',), world_size=world_size)
    assert config.parallel.world_size == world_size
    assert path.name in (RECIPES / "README.md").read_text(encoding="utf-8")


def test_dp_and_vocabulary_follow_from_elsewhere(tmp_path):
    data = write_dataset(tmp_path / "data")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[data]\npath = "{data}"\nseq_len = 8\nglobal_batch_size = 8\n[run]\nout = "o"\nmax_steps = 1\n[parallel]\ntp = 2\n'
        "[model]\nnum_layers = 1\nhidden_size = 8\nnum_heads = 2\nnum_kv_heads = 2\nffn_size = 8\n",
        encoding="utf-8",
    )
    config = read_train_config(recipe, world_size=8)
    assert (config.parallel.dp, config.model.vocab_size) == (4, 300)


def test_the_resolved_recipe_reads_back_as_the_same_config(tmp_path):
    config = config_for(tmp_path, tmp_path, data={"weights": {"hi": 0.5, "en": 0.5}})
    path = tmp_path / "resolved.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert fill(TrainConfig, read_tables(path), where="here") == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": {"dp": 3}}, "not a multiple of dp 3 x num_micro_batches 1 = 3; the next that is: 18"),
        (
            {"schedule": {"kind": "wsd", "warmup_steps": 2, "decay_steps": 9}},
            "2 warm-up and 9 decay steps do not fit into run.max_steps 6",
        ),
        ({"run": {"max_steps": 0}}, "max_steps and log_interval must be at least 1"),
        ({"run": {"eval_interval": -1}}, "must not be negative"),
        ({"checkpoint": {"keep": 0}}, "keep at least 1"),
        ({"failure": {"timeout_seconds": 0.0}}, "timeout_seconds must be positive"),
        ({"data": {"seq_len": 0}}, "must be at least 1"),
        (
            {"data": {"seq_len": 15}, "parallel": {"tp": 2}},
            "seq_len=15 over tp=2, which does not divide it; the next that works is 16",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        config_for(tmp_path, tmp_path, **changes)

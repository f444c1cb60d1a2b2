"""The model of claims and dependencies holds in every interleaving, and the checker finds each deliberate mistake."""

import re
from pathlib import Path

import pytest

import shiftwork
from model.check import FOLDER, MODELS, check, variants

BROKEN = [(model, variant) for model in MODELS for variant in variants(model)]


@pytest.mark.parametrize("model", MODELS)
def test_model_holds_in_every_interleaving(model: str, tmp_path: Path) -> None:
    found = check(model, tmp_path)
    assert found.error is None
    assert found.states > 1000


@pytest.mark.parametrize(("model", "variant"), BROKEN)
def test_checker_rejects_a_broken_variant(model: str, variant: str, tmp_path: Path) -> None:
    assert check(model, tmp_path, variant).error is not None


def test_models_declare_their_number_of_variants() -> None:
    assert {model: len(variants(model)) for model in MODELS} == {"claims": 4, "dependencies": 3}


@pytest.mark.parametrize("model", MODELS)
def test_model_names_files_that_exist(model: str) -> None:
    named = re.findall(r"[a-z_/]+\.(?:py|sql)", (FOLDER / f"{model}.pml").read_text())
    assert named
    assert [name for name in named if not (Path(shiftwork.__file__).parent / name).is_file()] == []

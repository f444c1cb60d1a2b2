"""File patterns match like their regular expressions, without backtracking."""

import random
import re

import pytest

from shiftwork.model.globs import Glob


def expected(pattern: str, path: str) -> bool:
    words = {"**/": "(?:[^/]+/)*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*|\?)", pattern)
    return re.fullmatch("".join(words.get(part, re.escape(part)) for part in parts), path) is not None


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("inbox/*.md", "inbox/a.md", True),
        ("inbox/*.md", "inbox/a/b.md", False),
        ("**/*.md", "a.md", True),
        ("**/*.md", "x/y/a.md", True),
        ("**/*.md", "x//a.md", False),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**/b", "a/xb", False),
        ("?.txt", "a.txt", True),
        ("?.txt", "/.txt", False),
        ("*", "", True),
        ("*.md", "résumé.md", True),
    ],
)
def test_glob_pattern_matches_expected_paths(pattern: str, path: str, *, fits: bool) -> None:
    assert Glob(pattern).matches(path) is fits


def test_glob_matches_like_its_regular_expression() -> None:
    rng = random.Random(4)  # the same ones each time
    fitting = 0
    for _ in range(20_000):
        pattern = "".join(rng.choice(["a", "b", "/", "*", "?", "**/", "*", "**/"]) for _ in range(rng.randint(1, 7)))
        path = "".join(rng.choice("ab/") for _ in range(rng.randint(0, 8)))
        assert Glob(pattern).matches(path) == expected(pattern, path), (pattern, path)
        fitting += expected(pattern, path)
    assert fitting > 1_000


def test_pattern_of_many_stars_is_matched_in_one_pass() -> None:
    """As a regular expression it took minutes for this one name."""
    assert not Glob("*?" * 14 + "Z").matches("a" * 34)
    assert Glob("*?" * 400 + "Z").matches("a" * 1_000 + "Z")

"""Pages name the versions that the tests run."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from tools import agent_clis, versions_page

PAGES = Path(__file__).resolve().parents[1] / "docs" / "howto"
NAMES = {"Claude Code": "claude", "Codex": "codex", "Gemini CLI": "gemini", "OpenCode": "opencode"}


def named() -> list[tuple[str, str, str]]:
    """Page, package and version, wherever a page names a version of one."""
    packages = {**{name: name for name in versions_page.versions()}}
    packages |= {name: agent_clis.PROGRAMS[short].package for name, short in NAMES.items()}
    found = []
    for page in sorted(PAGES.glob("*.md")):
        text = " ".join(page.read_text(encoding="utf-8").split())
        for name, package in packages.items():
            pattern = rf"(?<![\w-]){re.escape(name)}(?:`| \||\s)+(?:`[^`]+` \| )?(\d+\.\d+\.\d+)"
            found += [(page.stem, package, each) for each in re.findall(pattern, text)]
    return found


@pytest.mark.parametrize(("page", "package", "stated"), named(), ids=str)
def test_page_names_the_version_that_is_run(page: str, package: str, stated: str) -> None:
    assert stated == versions_page.versions()[package]


def test_pages_of_programs_and_frameworks_name_versions() -> None:
    pages = {page for page, _, _ in named()}
    frameworks = {"pydantic-ai", "openai-agents", "claude-agent-sdk", "langgraph"}
    assert {"cli-agents", "acp", "mcp", "a2a", "notifications", *frameworks} <= pages


@pytest.mark.parametrize("tried", versions_page.PYTHON, ids=lambda tried: tried.package)
def test_installed_version_is_the_one_that_is_named(tried: versions_page.Tried) -> None:
    assert version(tried.package) == versions_page.versions()[tried.package]
    assert (PAGES / f"{tried.page}.md").exists()
    assert (PAGES.parents[1] / tried.tests).exists()

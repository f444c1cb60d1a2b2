"""Writes llms.txt and llms-full.txt of the site, for language models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

OPTIONAL = {"Examples", "The documents", "Changes", "Contributing"}
"""Sections that models with a small context may skip; the llms.txt format defines a section `Optional`."""
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SENTENCE = re.compile(r"(.+?[.:!?])(?:\s|$)", re.DOTALL)


class Page(NamedTuple):
    """A page of the navigation."""

    section: str
    title: str
    place: str


def pages(configuration: dict[str, Any]) -> list[Page]:
    return [page for entry in configuration["nav"] for page in _below(entry, "Start")]


def _below(entry: dict[str, Any], section: str) -> Iterator[Page]:
    for title, found in entry.items():
        if isinstance(found, str):
            yield Page("Optional" if title in OPTIONAL else section, title, found)
        else:
            for each in found:
                yield from _below(each, "Optional" if title in OPTIONAL else title)


def write(docs: Path, site: Path) -> None:
    """Write the text of every page next to its HTML, the list of pages to llms.txt, and all texts to llms-full.txt."""
    configuration = yaml.safe_load((docs.parent / "mkdocs.yml").read_text(encoding="utf-8"))
    found = pages(configuration)
    texts = {page: _FRONT_MATTER.sub("", (docs / page.place).read_text(encoding="utf-8")).strip() for page in found}
    for page, text in texts.items():
        (site / page.place).parent.mkdir(parents=True, exist_ok=True)
        (site / page.place).write_text(text + "\n", encoding="utf-8")
    head = f"# {configuration['site_name']}\n\n> {configuration['site_description']}\n"
    (site / "llms.txt").write_text(head + _listed(texts), encoding="utf-8")
    whole = "\n\n".join(f"<!-- {page.place} -->\n\n{text}" for page, text in texts.items())
    (site / "llms-full.txt").write_text(f"{head}\n{whole}\n", encoding="utf-8")


def _listed(texts: dict[Page, str]) -> str:
    sections = sorted({page.section: None for page in texts}, key=lambda name: name == "Optional")  # that one is last
    lines = []
    for section in sections:
        lines += ["", f"## {section}", ""]
        lines += [f"- [{p.title}]({p.place}): {summary(text)}" for p, text in texts.items() if p.section == section]
    return "\n".join(lines) + "\n"


def summary(text: str) -> str:
    """Return the first sentence of a page's prose."""
    blocks = [block for block in re.split(r"\n{2,}", text) if re.match(r"[A-Za-z`\[]", block)]
    if not blocks:
        return "a page without prose."
    plain = _LINK.sub(r"\1", " ".join(blocks[0].split()))
    sentence = _SENTENCE.match(plain)
    return (sentence[1] if sentence else plain).rstrip(":") or plain

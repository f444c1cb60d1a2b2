"""Build the site of docs/ into site/. Linked files of the repository become pages, too; it needs no other host."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import llms

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()[^)#\s]+")
LANGUAGES = {".py": "python", ".json": "json"}


def pages() -> dict[Path, Path]:
    """Return the place of each file in the site: the pages of docs/, and the files outside of it that they link to."""
    found: dict[Path, Path] = {}
    waiting = sorted(DOCS.rglob("*.md"))
    while waiting:
        file = waiting.pop()
        if file not in found:
            found[file] = place(file)
            waiting += leads_to(file)
    return found


def place(file: Path) -> Path:
    """Map docs/howto/wait.md to howto/wait.md, ARCHITECTURE.md to architecture.md, a.py to a page a.py.md."""
    inside = file.relative_to(DOCS if file.is_relative_to(DOCS) else ROOT)
    if file.suffix != ".md":
        return inside.with_name(f"{inside.name}.md")
    return inside.with_name("index.md" if inside.stem == "README" else inside.name.lower())


def leads_to(file: Path) -> list[Path]:
    """Return the files that a page links to, without pictures, which are copied with docs/."""
    if file.suffix != ".md":
        return []
    linked = [target(file, link) for link in LINK.findall(file.read_text(encoding="utf-8"))]
    return [each for each in linked if each.is_file() and (each.suffix == ".md" or not each.is_relative_to(DOCS))]


def target(file: Path, link: str) -> Path:
    return Path(os.path.normpath(file.parent / link))


def text(file: Path, places: dict[Path, Path]) -> str:
    """Return the content of a file's page: its text with links adapted to the site, or its code."""
    written = file.read_text(encoding="utf-8")
    if file.suffix != ".md":
        return f"# {file.relative_to(ROOT)}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{written}````\n"

    def moved(link: re.Match[str]) -> str:
        led_to = places.get(target(file, link[0]))
        return link[0] if led_to is None else os.path.relpath(led_to, places[file].parent)

    return LINK.sub(moved, written)


def stage(folder: Path) -> None:
    """Write the input of the generator to this folder: its configuration and every page."""
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    places = pages()
    for file, where in places.items():
        page = folder / "docs" / where
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text(file, places), encoding="utf-8")


def build(site: Path) -> None:
    """Build the site and replace the existing one."""
    with tempfile.TemporaryDirectory() as name:
        stage(Path(name))
        line = [sys.executable, "-m", "zensical", "build", "--strict"]
        done = subprocess.run(line, cwd=name, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            sys.exit(f"the site was not built:\n{done.stdout}")
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(Path(name) / "site", site)
        llms.write(Path(name) / "docs", site)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "site", help="the folder it is written to")
    site = parser.parse_args(arguments).into
    build(site)
    print(f"{site}/index.html written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The site of docs/ is complete: every page is listed, every link is valid, no other host is contacted."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from tests.dashboard.conftest import opened_browser
from tools import site

LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


class Links(HTMLParser):
    """The links of a page, the files it loads, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.leads_to: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        self.anchors |= {known["id"]} if "id" in known else set()
        if tag == "a" and "href" in known:
            self.leads_to.append(known["href"])
        if tag in LOADED and LOADED[tag] in known:
            self.loads.append(known[LOADED[tag]])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    site.build(folder)
    return folder


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[Path, Links]:
    return {page: Links(page) for page in built.rglob("*.html") if page.name != "404.html"}


def in_navigation(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for below in entry.values():
            yield from [below] if isinstance(below, str) else in_navigation(below)


def test_every_page_of_the_docs_is_in_the_navigation() -> None:
    listed = list(in_navigation(yaml.safe_load((site.ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    places = {file: str(place) for file, place in site.pages().items()}
    assert sorted(set(listed) - set(places.values())) == []
    assert (
        sorted(place for file, place in places.items() if file.is_relative_to(site.DOCS) and place not in listed) == []
    )
    assert len(listed) == len(set(listed))


def test_every_link_of_the_site_is_valid(pages: dict[Path, Links]) -> None:
    broken = [
        f"{page.name} -> {link}" for page, found in pages.items() for link in found.leads_to if lost(page, link, pages)
    ]
    assert broken == []


def lost(page: Path, link: str, pages: dict[Path, Links]) -> bool:
    parts = urlsplit(link)
    if parts.scheme:
        return False
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target /= "index.html"
    known = pages[target].anchors if target in pages else set()
    return not target.exists() or (target in pages and bool(parts.fragment) and unquote(parts.fragment) not in known)


def test_linked_files_outside_the_docs_are_pages(built: Path) -> None:
    assert "A small fleet of agents on one queue" in (built / "examples" / "fleet.py.html").read_text(encoding="utf-8")
    tutorial = (built / "tutorial.html").read_text(encoding="utf-8")
    assert re.search(r'href="examples/(index.html)?"', tutorial)


def test_site_loads_nothing_from_another_host(pages: dict[Path, Links]) -> None:
    assert [loaded for found in pages.values() for loaded in found.loads if urlsplit(loaded).netloc] == []


def test_text_for_models_lists_every_page(built: Path) -> None:
    listed = (built / "llms.txt").read_text(encoding="utf-8")
    assert listed.startswith("# Shiftwork\n\n> A durable task queue")
    entries = re.findall(r"^- \[(.+)\]\((.+)\): (.+)$", listed, re.MULTILINE)
    navigation = yaml.safe_load((site.ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(place for _, place, _ in entries) == sorted(in_navigation(navigation))
    assert [place for _, place, _ in entries if not (built / place).read_text(encoding="utf-8").startswith("#")] == []
    assert [about for _, _, about in entries if len(about) < 10 or "](" in about] == []
    assert [line for line in listed.splitlines() if line.startswith("## ")][-1] == "## Optional"


def test_text_for_models_has_every_page_whole(built: Path) -> None:
    whole = (built / "llms-full.txt").read_text(encoding="utf-8")
    skill = (site.DOCS / "agents" / "skill.md").read_text(encoding="utf-8")
    assert skill.split("---\n", 2)[2].split("\n## Command line")[0].strip() in whole
    assert "---\nname: shiftwork" not in whole
    assert (site.DOCS / "howto" / "wait.md").read_text(encoding="utf-8").splitlines()[0] in whole


@contextmanager
def served(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_browser_on_the_site_contacts_no_other_host(built: Path) -> None:
    asked: list[str] = []
    with served(built) as address, opened_browser() as browser:
        tab = browser.new_page()
        tab.on("request", lambda request: asked.append(request.url))
        for name in ("index", "tutorial", "reference/states", "reference/http", "howto/dashboard", "examples/fleet.py"):
            tab.goto(f"{address}{name}.html", wait_until="networkidle")
            assert tab.locator("h1").is_visible()
        assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []

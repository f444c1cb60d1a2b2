"""The wheel has correct metadata, is complete, and works in a clean environment."""

import email
import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import shiftwork
from tests.client.serving import served
from tests.packaging.environments import FRAMEWORKS, Environment
from tests.services.programs import REPOSITORY

pytestmark = pytest.mark.timeout(400)  # the first test of a run may fetch and build

BASE = {"apsw", "click", "cronsim", "jsonschema-rs", "markdown-it-py", "mdurl", "msgspec", "pygments", "rich"}
HTTP = {"aiohappyeyeballs", "aiohttp", "aiosignal", "attrs", "frozenlist", "idna", "multidict", "propcache", "yarl"}
UNUSED_BY_A_WORKER = ["apsw", "cronsim", "jsonschema_rs", "rich", "markdown_it", "pygments"]

WORKER = """
from shiftwork import Worker

worker = Worker()


@worker.handler("greet")
async def greet(ctx):
    kept = await ctx.step("greeting", lambda: f"Hello {ctx.payload['name']}")
    return {"said": kept}
"""

LOADED = """
import sys
from shiftwork import Client, Context, Done, Fail, Release, Worker
print(*sorted(sys.modules))
"""


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return email.message_from_string(archive.read(name).decode())


def test_metadata_describes_the_project(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("shiftwork", shiftwork.__version__)
    assert metadata["Summary"]
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata["Requires-Python"] == ">=3.11"
    assert "task-queue" in metadata["Keywords"].split(",")
    urls = dict(each.split(", ", 1) for each in metadata.get_all("Project-URL", []))
    assert urls.keys() >= {"Homepage", "Documentation", "Source", "Issues", "Changelog"}


def test_metadata_lists_every_supported_python(metadata: Message) -> None:
    listed = [each.rsplit(" ", 1)[1] for each in metadata.get_all("Classifier", []) if re.search(r":: 3\.\d+$", each)]
    assert listed == ["3.11", "3.12", "3.13", "3.14"]


def test_readme_is_the_description(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).startswith("# Shiftwork")


def test_extras_are_only_for_users(metadata: Message) -> None:
    extras = set(metadata.get_all("Provides-Extra", []))
    used = {
        "a2a",
        "acp",
        "all",
        "apprise",
        "client",
        "mcp",
        "otel",
        "postgres",
        "prices",
        "redis",
        "s3",
        "secrets",
        "server",
        "worker",
    }
    assert extras == used | FRAMEWORKS


def test_extra_all_names_every_other_extra_but_the_frameworks() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (named,) = project["optional-dependencies"]["all"]
    assert named == f"shiftwork[{','.join(sorted(project['optional-dependencies'].keys() - {'all', *FRAMEWORKS}))}]"


def test_wheel_has_the_files_that_are_not_python(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "-C", str(REPOSITORY), "ls-files", "src"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name.removeprefix("src/") for name in tracked} <= packed
    assert {name for name in packed if not name.startswith("shiftwork/")} == set()


def test_thin_worker_installs_no_server_and_no_driver(thin: Environment) -> None:
    found = thin.distributions()
    assert found - {"shiftwork"} - BASE - HTTP - {"typing-extensions"} == set()
    assert {"shiftwork", "aiohttp", "msgspec"} <= found


def test_thin_worker_loads_no_store(thin: Environment, tmp_path: Path) -> None:
    loaded = set(thin.run("python", "-c", LOADED, cwd=tmp_path).split())
    assert loaded.isdisjoint(UNUSED_BY_A_WORKER)
    assert {name for name in loaded if name.startswith(("shiftwork.store", "shiftwork.queue", "shiftwork.server"))} == (
        set()
    )


def test_thin_worker_works_on_a_server_without_database_drivers(thin: Environment, tmp_path: Path) -> None:
    """The packages for databases, schedules and schemas are not only unused: they may be absent."""
    (tmp_path / "greeting.py").write_text(WORKER, encoding="utf-8")
    absent = "".join(f"sys.modules[{name!r}] = None\n" for name in UNUSED_BY_A_WORKER)
    program = tmp_path / "thin.py"
    program.write_text(f"import sys\n{absent}from shiftwork.cli import main\nmain()\n", encoding="utf-8")
    with served(f"sqlite:///{tmp_path}/queue.db") as server:
        store = ["--store", server.url]
        named = ["--id", "g1", "--payload", '{"name": "Ada"}']
        thin.run("python", program, *store, "submit", "greet", *named, cwd=tmp_path)
        thin.run("python", program, *store, "work", "greeting:worker", "--until-idle", cwd=tmp_path)
        shown = thin.run("python", program, "--json", *store, "show", "g1", cwd=tmp_path)
    assert "Hello Ada" in shown


def test_program_prints_its_version(thin: Environment, tmp_path: Path) -> None:
    version = f"shiftwork {shiftwork.__version__} (Python {sys.version.split()[0]})\n"
    assert thin.run("shiftwork", "--version", cwd=tmp_path) == version
    assert thin.run("shiftwork", "version", cwd=tmp_path) == version


def test_bare_install_works_on_a_file(wheel: Path, tmp_path: Path) -> None:
    bare = Environment.made(tmp_path / "environment", wheel)
    assert bare.distributions() - {"shiftwork", "typing-extensions"} == BASE
    bare.run("shiftwork", "submit", "greet", "--id", "g1", cwd=tmp_path)
    assert "greet" in bare.run("shiftwork", "list", cwd=tmp_path)

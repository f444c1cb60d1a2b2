"""The images: the steps of the Dockerfile, done in a clean folder, give a server and a worker that work.

Without a container tool, the base image is this machine; everything else follows the file.
"""

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.packaging.environments import PIP, Environment, run
from tests.services.common import free_port
from tests.services.programs import REPOSITORY

pytestmark = pytest.mark.timeout(400)  # the first test of a run may fetch and build

DOCKERFILE = REPOSITORY / "deploy" / "Dockerfile"

WORKER = """
from shiftwork import Worker

worker = Worker()


@worker.handler("greet")
async def greet(ctx):
    return {"said": f"Hello {ctx.payload['name']}"}
"""


class Stage(NamedTuple):
    """One FROM of the file, and the instructions after it."""

    base: str
    lines: list[str]

    def words(self, instruction: str) -> list[str]:
        """The last list that an instruction gives."""
        found = [line for line in self.lines if line.startswith(f"{instruction} ")]
        return [str(word) for word in json.loads(found[-1][found[-1].index("[") :])]


def stages() -> dict[str, Stage]:
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found: dict[str, Stage] = {}
    for line in lines:
        if made := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            found[made[2]] = Stage(made[1], [])
        else:
            found[list(found)[-1]].lines.append(line)
    return found


STAGES = stages()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return the output of the build stage, made only from the files it copies, with the extras it names."""
    folder = tmp_path_factory.mktemp("image")
    source = folder / "source"
    source.mkdir()
    for line in STAGES["build"].lines:
        if line.startswith("COPY "):
            for name in line.split()[1:-1]:
                place = REPOSITORY / name
                left_out = shutil.ignore_patterns("__pycache__")
                _ = (
                    shutil.copytree(place, source / name, ignore=left_out)
                    if place.is_dir()
                    else shutil.copy(place, source)
                )
    run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source])
    (wheel,) = folder.glob("*.whl")
    (extras,) = re.findall(r"pip install .*'\.\[(.+)\]'", "\n".join(STAGES["build"].lines))
    return Environment.made(folder / "environment", wheel, *extras.split(","))


def test_ignored_files_do_not_include_what_the_build_copies() -> None:
    kept = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [name for line in STAGES["build"].lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert [name for name in copied if f"!{name}" not in kept] == []
    assert "*" in kept


def test_compose_builds_stages_that_exist() -> None:
    services = yaml.safe_load((DOCKERFILE.parent / "compose.yaml").read_text(encoding="utf-8"))["services"]
    targets = {service["build"]["target"] for service in services.values() if "build" in service}
    assert targets == {"server", "worker"}
    assert targets <= STAGES.keys()
    assert list(STAGES)[-1] == "server"  # what is built without a target


def test_image_has_every_feature_of_all(image: Environment) -> None:
    """Agent frameworks are not included: each worker brings its own."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    (everything,) = extras["all"]
    chosen = everything.partition("[")[2].rstrip("]").split(",")
    wanted = {re.split(r"[\[<>=; ]", line)[0].lower() for name in chosen for line in extras[name]}
    assert wanted - image.distributions() == set()


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def server(image: Environment, tmp_path: Path, store: str) -> Iterator[str]:
    """The server as the image starts it, on a free port of loopback."""
    port = str(free_port())
    stage = STAGES["server"]
    command = [*stage.words("ENTRYPOINT"), *stage.words("CMD")]
    line = [word.replace("8080", port).replace("0.0.0.0", "127.0.0.1") for word in command]  # noqa: S104  # as in the image
    check = [word.replace("8080", port) for word in stage.words("HEALTHCHECK")]
    environment = {**image.variables(), "SHIFTWORK_STORE": store}
    with subprocess.Popen(
        [image.program(line[0]), *line[1:]], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert f"on http://127.0.0.1:{port}" in process.stdout.readline()
            image.run(check[0], *check[1:], cwd=tmp_path)
            yield f"http://127.0.0.1:{port}"
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_worker_of_its_image_works_at_the_server_of_its_image(
    image: Environment, server: str, store: str, tmp_path: Path
) -> None:
    shiftwork = image.program("shiftwork")
    known = {**image.variables(), "SHIFTWORK_STORE": store}
    made = run([shiftwork, "tokens", "create", "me", "--scope", "admin", "--json"], cwd=tmp_path, env=known)
    behind = {**image.variables(), "SHIFTWORK_STORE": server, "SHIFTWORK_TOKEN": json.loads(made)["secret"]}
    run([shiftwork, "submit", "greet", "--id", "g1", "--payload", "name=Ada"], cwd=tmp_path, env=behind)
    work = tmp_path / "work"
    work.mkdir()
    (work / "app.py").write_text(WORKER, encoding="utf-8")
    program, *words = STAGES["worker"].words("ENTRYPOINT")
    run([image.program(program), *words, "app:worker", "--until-idle"], cwd=work, env={**behind, "HOME": str(tmp_path)})
    assert "Hello Ada" in run([shiftwork, "show", "g1"], cwd=tmp_path, env=behind)


def test_worker_image_alone_prints_its_help(image: Environment, tmp_path: Path) -> None:
    stage = STAGES["worker"]
    program, *words = [*stage.words("ENTRYPOINT"), *stage.words("CMD")]
    assert "Usage: shiftwork work" in image.run(program, *words, cwd=tmp_path)

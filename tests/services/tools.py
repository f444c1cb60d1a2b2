"""The tools of the document's claim script: jq and flock, found as the servers are."""

import functools
import os
import shutil

from tests.services.programs import Wanted, find

JQ = Wanted(component="jq", variable="SHIFTWORK_TEST_JQ", names=("jq",), debian="jq")
FLOCK = Wanted(component="flock", variable="SHIFTWORK_TEST_FLOCK", names=("flock",), debian="util-linux")
BASH = Wanted(component="bash", variable="SHIFTWORK_TEST_BASH", names=("bash",), debian="bash")


@functools.cache
def environment() -> dict[str, str]:
    """Return an environment in which a script finds them; raise an error if they cannot be installed."""
    found = [find(wanted) for wanted in (BASH, JQ, FLOCK)]
    folders = [str(program.file.parent) for program in found]
    libraries = [str(library) for program in found for library in program.libraries]
    known = {**os.environ, "PATH": os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])}
    return {**known, "LD_LIBRARY_PATH": os.pathsep.join(libraries)} if libraries else known


@functools.cache
def bash() -> str:
    return shutil.which("bash", path=environment()["PATH"]) or "bash"

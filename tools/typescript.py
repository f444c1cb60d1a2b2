"""Builds the TypeScript client from this checkout: types from the OpenAPI document, then dist/, then a package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from shiftwork.server.openapi import document
from shiftwork.server.routes import ENDPOINTS

PACKAGE = Path(__file__).resolve().parents[1] / "clients" / "typescript"
NEEDED = "The TypeScript client needs Node.js 20 or newer with npm on PATH."


def install(folder: Path) -> None:
    """Fetch the build's dependencies, by name and exact version."""
    run(folder, "npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")


def build(folder: Path) -> None:
    """Write src/generated/ and dist/ of a package whose dependencies are installed."""
    described = folder / "openapi.json"
    described.write_text(json.dumps(document(ENDPOINTS)), encoding="utf-8")
    run(folder, "npm", "run", "--silent", "generate", "--", described.name)
    described.unlink()
    run(folder, "npm", "run", "--silent", "build")


def pack(folder: Path) -> Path:
    """Create the package as npm would publish it, and return its path."""
    written = run(folder, "npm", "pack", "--silent", "--loglevel=error").split()
    return folder / written[-1]


def run(folder: Path, *line: str) -> str:
    """Run a program and return its output; exit with one sentence if it fails or is missing."""
    if shutil.which(line[0]) is None:
        raise SystemExit(NEEDED)
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> int:
    install(PACKAGE)
    build(PACKAGE)
    print(pack(PACKAGE))
    return 0


if __name__ == "__main__":
    sys.exit(main())

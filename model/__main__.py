"""`python -m model`: check that the models hold and that every broken variant is rejected."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from model.check import MODELS, check, variants


def main() -> int:
    wrong = 0
    print(f"{'model':<13} {'variant':<14} {'states':>8}  verdict")
    for model in MODELS:
        for variant in (None, *variants(model)):
            with tempfile.TemporaryDirectory() as folder:
                found = check(model, Path(folder), variant)
            as_wanted = (found.error is None) == (variant is None)
            wrong += not as_wanted
            verdict = "holds" if found.error is None else f"rejected: {found.error}"
            print(f"{model:<13} {variant or '-':<14} {found.states:>8}  {verdict}{'' if as_wanted else '  WRONG'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

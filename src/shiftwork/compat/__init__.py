"""The five documents: their names, bridges to their systems, and claims in their folders.

Importing this package registers their views and what runs around a claim. Nothing outside imports it but the
commands of the bridges; `features.EXTENSIONS` names it.
"""

from __future__ import annotations

from shiftwork.compat import views
from shiftwork.compat.external import folder_claims

__all__ = ["folder_claims", "views"]

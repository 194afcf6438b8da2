"""A setting as people type it: NAME=VALUE."""

from __future__ import annotations

import json
from typing import Any

from backend.errors import Refusal


def named_value(text: str, flag: str) -> tuple[str, Any]:
    """Name and value; a value that is JSON (a number, true, false) is what it says, any other is text.

    Raises:
        Refusal: If there is no name or no equals sign.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Refusal(f"{flag} {text!r} is not NAME=VALUE.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value

"""What the backend refuses, each with the status a client sees.

The text is a sentence that says what was seen and what would be right.

Refusal (422)
 +- NotFound (404)      a name nobody registered
 +- Conflict (409)      the name is taken, or the thing is in use
 +- TooLarge (413)      more bytes, rows or memory than is allowed here
 +- Unavailable (503)   something outside is missing just now: the hub, the worker, the store's lock

`analysis.errors.GeometryError` is the sibling tree for questions that geometry refuses; HTTP shows it as 422.
"""

from __future__ import annotations


class Refusal(ValueError):
    """The request cannot be served as it stands.

    `known` lists what would have been accepted; `asks` names the one option that would settle what is left open.
    """

    status = 422
    title = "Refused"

    def __init__(self, detail: str, known: list[str] | None = None, asks: str | None = None):
        super().__init__(detail)
        self.known = known
        self.asks = asks


class NotFound(Refusal):
    """Raised when a name is not registered."""

    status = 404
    title = "Not found"


class Conflict(Refusal):
    """Raised when a name is taken already or a thing cannot be changed now."""

    status = 409
    title = "Conflict"


class TooLarge(Refusal):
    """Raised when bytes, rows or memory exceed a cap."""

    status = 413
    title = "Too large"


class Unavailable(Refusal):
    """Raised when something needed from outside is missing just now."""

    status = 503
    title = "Unavailable"

"""Everything `analysis` refuses, as one tree.

GeometryError
 +- UnknownName          a measure, statistic, slot or knob that nobody registered
 +- BadDeclaration       a measure or statistic file that declares something impossible
 +- BadKnob              a knob value outside its declared choices or range
 +- NoExperts            a question about experts put to a dense model
 +- NotComparable        checkpoints whose axes differ where the measure needs them equal
 +- TooFew               not enough prompts, categories or tokens to define the number
"""


class GeometryError(ValueError):
    """A refusal; its text says what was seen and what would be right."""


class UnknownName(GeometryError):
    """Raised when a name is not registered; the text lists the known ones."""


class BadDeclaration(GeometryError):
    """Raised at import when a measure or statistic declares what cannot be served."""


class BadKnob(GeometryError):
    """Raised when a knob has a value outside its declared choices or range."""


class NoExperts(GeometryError):
    """Raised when a measure that reads experts meets a model without routed experts."""


class NotComparable(GeometryError):
    """Raised when two sides of a comparison differ in an axis the measure needs equal."""


class TooFew(GeometryError):
    """Raised when there are too few prompts, categories or tokens for the number to exist."""

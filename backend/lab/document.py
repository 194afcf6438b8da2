"""A document of the corpus, and what a source says about itself."""

from dataclasses import dataclass

DOMAINS = ("code", "mathematics", "story", "fact")


@dataclass(frozen=True)
class Document:
    """One text that is never split between training, validation and prompts.

    `name` is unique within its source and readable: a module, a chapter, a country.
    """

    source: str
    name: str
    text: str


@dataclass(frozen=True)
class Source:
    """Where documents come from, under which licence, and how they may be used.

    `unseen` are documents of a kind that training never meets; when a source has them, prompts come from them alone.
    """

    name: str
    domain: str
    version: str
    licence: str
    documents: tuple[Document, ...]
    unseen: tuple[Document, ...] = ()

"""Prompt sets: what is asked of a model, read from files row by row."""

from backend.prompts.library import Prompts, load_shipped, read_file
from backend.prompts.parse import parse
from backend.prompts.report import Problem, Report
from backend.prompts.sets import Prompt, PromptSet

__all__ = ["Problem", "Prompt", "PromptSet", "Prompts", "Report", "load_shipped", "parse", "read_file"]

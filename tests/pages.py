"""The blocks of code in a page of Markdown: Python, commands, and what is not run and why."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

NOT_RUN = re.compile(r"<!--\s*not run:\s*(.*?)\s*-->", re.DOTALL)
# What a line of a block starts with where the block is commands; only bertflow's own are run.
COMMANDS = ("bertflow", "make", "pip", "python -m")
OUTPUT = "output"
# Languages whose blocks tests of their own run.
ELSEWHERE = ("javascript",)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        page: The file.
        line: Its first line of code, counted from 1.
        language: As it says, lower case; "" where it says nothing.
        text: The code.
        not_run: Why it is not run, or None.
    """

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None

    @property
    def kind(self) -> str:
        """What it is: python, doctest, commands, directive, output or elsewhere.

        Raises:
            AssertionError: It has no language and is Python all the same.
        """
        if self.language.startswith("{"):
            return "directive"
        if self.language == "python":
            return "doctest" if ">>>" in self.text else "python"
        if self.language in ELSEWHERE:
            return "elsewhere"
        assert self.language in ("", "text"), f"{self.where}: {self.language} is not run"
        if any(line.startswith(COMMANDS) for line in self.text.splitlines()):
            return "commands"
        if self.language == "":
            assert not _is_python(self.text), f"{self.where}: Python without its language"
        return OUTPUT

    @property
    def where(self) -> str:
        """Page and line."""
        return f"{self.page.name}:{self.line}"

    def commands(self) -> list[list[str]]:
        """The words of each command, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        found = [shlex.split(line, comments=True) for line in lines]
        return [words for words in found if words]


def _is_python(text: str) -> bool:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Call | ast.Import | ast.ImportFrom) for node in ast.walk(tree))


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    found, reason = [], None
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8")):
        if token.type == "html_block":
            said = NOT_RUN.search(token.content)
            reason = said[1] if said else None
        elif token.type in ("fence", "code_block"):
            assert token.map is not None
            line = token.map[0] + (2 if token.type == "fence" else 1)
            language = token.info.strip().lower()
            found.append(Block(page, line, language, token.content, reason))
            reason = None
        elif token.nesting >= 0 and token.type != "inline":
            reason = None
    return found

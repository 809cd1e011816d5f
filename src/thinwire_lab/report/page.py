"""``Page``: paragraphs, tables and charts as one string of HTML that needs no other file. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Protocol


class Block(Protocol):
    def html(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Heading:
    text: str

    def html(self) -> str:
        return f"<h2>{escape(self.text)}</h2>"


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str
    note: bool = False

    def html(self) -> str:
        kind = ' class="note"' if self.note else ""
        return f"<p{kind}>{escape(self.text)}</p>"


@dataclass(frozen=True, slots=True)
class Table:
    """The first column is words, the others are figures."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def html(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.header)
        body = "".join(f"<tr>{_cells(row)}</tr>" for row in self.rows)
        return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cells(row: tuple[str, ...]) -> str:
    return "".join(f"<td>{escape(cell)}</td>" for cell in row)


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    blocks: tuple[Block, ...]

    def html(self) -> str:
        style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
        body = "\n".join(block.html() for block in self.blocks)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>\n{style}</style></head>\n"
            f"<body><h1>{escape(self.title)}</h1>\n{body}\n</body></html>\n"
        )

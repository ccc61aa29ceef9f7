"""Documents from files: plain text, Markdown, HTML and PDF, and standard input."""

import codecs
import io
import logging
import re
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

from utaca.errors import UserError

STDIN = "-"
SEPARATOR = "\n\n"
"""Separator between the texts of several files."""
_HTML = (".html", ".htm", ".xhtml")
_HIDDEN = {"script", "style", "template", "noscript", "title", "svg", "math"}
_BLOCKS = re.compile(
    "address|article|aside|blockquote|br|caption|d[dlt]|details|div|fieldset|figcaption|figure|footer|form|h[1-6r]|"
    "header|li|main|nav|[ou]l|option|p|pre|section|summary|table|tr|tbody|tfoot|thead"
)
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# What browsers take some declared encodings for: a declaration that is read byte by byte is not in UTF-16.
_BROWSERS = dict.fromkeys(("iso-8859-1", "latin1", "us-ascii", "ascii"), "cp1252")
_BROWSERS |= dict.fromkeys(("utf-16", "utf-16le", "utf-16be"), "utf-8")


def read(paths: Sequence[str | Path]) -> str:
    """The texts of files, joined in their order; ``-`` is standard input.

    Raises :class:`UserError`, with a sentence that names the file, if a file is missing, unreadable or without text.
    """
    if list(map(str, paths)).count(STDIN) > 1:
        raise UserError("standard input is read once; give --document - once")
    return SEPARATOR.join(_read(str(path)) for path in paths)


def _read(path: str) -> str:
    name = "standard input" if path == STDIN else path
    try:
        content = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    except IsADirectoryError as error:
        raise UserError(f"document {name} is a folder; name the files in it") from error
    except FileNotFoundError as error:
        mend = "download it first" if "://" in path else "check its path"
        raise UserError(f"document {name} does not exist; {mend}") from error
    except OSError as error:
        raise UserError(f"document {name} cannot be read ({error.strerror}); let this user read it") from error
    # Other bytes may precede the mark; the name tells such a file from a text about PDF.
    pdf = b"%PDF-" in content[: 1024 if path.lower().endswith(".pdf") else 5]
    if pdf:
        text = _of_pdf(content, name)
    elif path.lower().endswith(_HTML) or re.match(rb"\s*<(!doctype html|html)\b", content[:1000], re.IGNORECASE):
        text = of_html(_decoded(content, name, _declared(content)))
    else:
        text = _decoded(content, name)
    if not text.strip():
        why = "which may be a scan: recognise its text first (OCR)" if pdf else "give another"
        raise UserError(f"document {name} holds no text; {why}")
    return text.strip()


def _decoded(content: bytes, name: str, encoding: str = "utf-8") -> str:
    mark = next((mark for mark in _MARKS if content.startswith(mark)), None)
    try:
        text = content.decode(_MARKS[mark] if mark else encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise UserError(
            f"document {name} is neither PDF nor text in {encoding.upper()}; save it as UTF-8 text, HTML or PDF"
        ) from error
    if "\0" in text:
        raise UserError(f"document {name} is a binary file; save it as UTF-8 text, HTML or PDF")
    return text.replace("\r\n", "\n")


def _declared(content: bytes) -> str:
    """The encoding that an HTML file declares, as browsers take it; UTF-8 if the file declares none."""
    match = re.search(rb"""<meta[^>]*charset=["']?([\w-]+)|<\?xml[^>]*encoding=["']([\w-]+)""", content[:2048], re.I)
    name = (match[1] or match[2]).decode("ascii").lower() if match else "utf-8"
    return _BROWSERS.get(name, name)


def of_html(page: str) -> str:
    """The text that an HTML page shows, with a line or paragraph for each block element and row of a table."""
    parser = _Shown()
    parser.feed(page)
    parser.close()
    lines = [" ".join(line.split()) for line in "".join(parser.parts).split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


class _Shown(HTMLParser):
    """A parser that collects the text of a page that a browser would show."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden, self._preformatted = "", False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("td", "th"):
            self.parts.append(" | ")
        if not self._hidden and tag in _HIDDEN:
            self._hidden = tag
        self._end_line(tag, begun=True)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._hidden:
            self._hidden = ""
        self._end_line(tag, begun=False)

    def _end_line(self, tag: str, *, begun: bool) -> None:
        if _BLOCKS.fullmatch(tag):
            self.parts.append("\n")
        if tag == "pre":
            self._preformatted = begun

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            # A line end in the source is only a space, but in preformatted text; block elements begin new lines.
            self.parts.append(data if self._preformatted else data.replace("\n", " "))


def _of_pdf(content: bytes, name: str) -> str:
    try:
        from pypdf import PdfReader
    except ImportError as error:
        raise UserError(f"document {name} is a PDF, which pypdf reads; run: pip install pypdf") from error
    # The user gets one sentence about a damaged file, without pypdf's warnings.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        pdf = PdfReader(io.BytesIO(content))
        if pdf.is_encrypted and not pdf.decrypt(""):
            raise UserError(f"document {name} is locked by a password; save it without one")
        return SEPARATOR.join(page.extract_text() for page in pdf.pages)
    except UserError:
        raise
    except Exception as error:  # pypdf raises errors of every class for damaged files
        raise UserError(f"document {name} is a PDF that cannot be read ({error}); save it anew") from error

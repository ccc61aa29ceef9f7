"""Documents from files: plain text, Markdown, HTML and PDF, and standard input."""

import codecs
import html
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from utaca.app.streams import tell
from utaca.errors import UserError

STDIN = "-"
SEPARATOR = "\n\n"
"""Separator between the texts of several files."""
_HTML = (".html", ".htm", ".xhtml", ".xht")
_XHTML = (".xhtml", ".xht")
_PAGE = re.compile(r"\s*(<\?xml\b[^>]*>)?\s*(?>(?:<!--.*?-->\s*)*)<(?:!doctype\s+html|html|head|body)\b", re.I | re.S)
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_OTHERS = {
    "a text in ISO-2022-JP": re.compile(r"[^\x1b]*\x1b\$[@B]"),
    "an RTF file": re.compile(r"\s*\{\\rtf"),
    "a PostScript file": re.compile(r"%!PS"),
    "a web archive or a mail": re.compile(
        r"(?:[\w-]+:.*\n(?:[ \t].*\n)*)*"
        r"(?:content-type:\s*multipart/|content-transfer-encoding:\s*(?:base64|quoted-printable)\b)",
        re.I,
    ),
}
"""Files of characters whose text is written in a way of their own."""
_FEW = 10
"""A page is in another encoding than it declares if more characters, and most of those beyond ASCII, are not in it."""
_VOID = "area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr"
_SELF_CLOSED = re.compile(rf"<(?!(?:{_VOID})\b)([a-z][\w:.-]*)(\s[^<>]*)?/>", re.I)


def read(paths: Sequence[str | Path], note: Callable[[str], None] = tell) -> str:
    """The texts of files, joined in their order; ``-`` is standard input.

    ``note`` gets a sentence for each file that was not read whole; by default it goes to standard error.
    Raises :class:`UserError`, with a sentence that names the file, if a file is missing, unreadable or without text.
    """
    if list(map(str, paths)).count(STDIN) > 1:
        raise UserError("standard input is read once; give --document - once")
    texts = []
    for path in map(str, paths):
        name = "standard input" if path == STDIN else _on_a_line(path)
        left_out: list[str] = []
        texts.append(_read(path, name, left_out))
        if left_out:
            note(f"document {name}: {_on_a_line('; '.join(left_out))}.")
    return SEPARATOR.join(texts)


def of_html(page: str, left_out: list[str] | None = None) -> str:
    """The text that an HTML page shows, with a line or paragraph for each block element and row of a table.

    The list ``left_out`` gets a phrase for each kind of thing that was left out.
    """
    text, phrases = _pages().read(page)
    if left_out is not None:
        left_out += phrases
    return text


def _pages() -> ModuleType:
    """The module that reads web pages, whose packages only they need."""
    try:
        from utaca.app import document_html
    except ImportError as error:
        raise UserError(f"a web page is read with {error.name}; run: pip install {error.name}") from error
    return document_html


def _on_a_line(text: str) -> str:
    """A text without line ends and codes for the terminal, which names of files may have."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", "\ufffd", text)


def _read(path: str, name: str, left_out: list[str]) -> str:
    """The text of a document; adds what it lacks of the document to ``left_out``, in words."""
    content = _bytes(path, name)
    # Other bytes may precede the mark; the file's name shows that it is no text about PDF.
    start = content[:1024] if path.lower().endswith(".pdf") else content[:5]
    is_pdf = b"%PDF-" in start
    text = _of_pdf(content, name, left_out) if is_pdf else _of_text(content, name, path.lower(), left_out)
    if not text.strip():
        why = "which may be a scan: recognise its text first (OCR)" if is_pdf else "give another"
        others = [phrase for phrase in left_out if "OCR" not in phrase]
        known = f" ({_on_a_line('; '.join(others))})" if others else ""
        raise UserError(f"document {name} holds no text{known}; {why}")
    # The first line keeps its indentation.
    return re.sub(r"\A(?:[^\S\n]*\n)+", "", text.rstrip())


def _bytes(path: str, name: str) -> bytes:
    """The content of a file or of standard input; raises :class:`UserError` if it cannot be read."""
    try:
        if path != STDIN:
            if not path:
                raise UserError("a document has an empty name; name a file, or - for standard input")
            if Path(path).is_char_device():
                raise UserError(f"document {name} is a device; name a file, or - for standard input")
            return Path(path).read_bytes()
        if sys.stdin is None or sys.stdin.closed:
            raise UserError("standard input is closed; pass a document to it, or name a file")
        return sys.stdin.buffer.read()
    except IsADirectoryError as error:
        raise UserError(f"document {name} is a folder; name the files in it") from error
    except FileNotFoundError as error:
        advice = "download it first" if "://" in path else "check its path"
        raise UserError(f"document {name} does not exist; {advice}") from error
    except OSError as error:
        raise UserError(f"document {name} cannot be read ({error.strerror}); let this user read it") from error
    except ValueError as error:  # a zero byte
        raise UserError(f"document {name} has no name that a file can have; check its path") from error


def _of_text(content: bytes, name: str, path: str, left_out: list[str]) -> str:
    """The text of a file of characters; of an HTML page, the text that it shows."""
    marked = [encoding for mark, encoding in _MARKS.items() if content.startswith(mark)]
    encoding = marked[0] if marked else "utf-8"
    whole = content.decode(encoding, errors="replace") if marked else content.decode("latin-1")
    start = whole[:4096]
    page = _PAGE.match(start)
    if page is None and not path.endswith(_HTML):
        text = _decoded(content, name, encoding)
        for kind, form in _OTHERS.items():
            if form.match(start):
                raise UserError(f"document {name} is {kind}; save it as UTF-8 text, HTML or PDF")
        return text
    declared = None if marked else _pages().declared(content)
    text = _as_declared(content, name, declared, left_out) if declared else _decoded(content, name, encoding)
    if path.endswith(_XHTML) or (page and page[1]):
        text = _as_html(text)
    return of_html(text, left_out)


def _as_html(page: str) -> str:
    """XHTML as HTML, in which an element that XML ends at once has begun, and CDATA is a comment."""
    before, *parts = page.split("<![CDATA[")
    texts = [_SELF_CLOSED.sub(r"<\1\2></\1>", before)]
    for part in parts:
        data, end, after = part.partition("]]>")
        if end:
            texts.append(html.escape(data) + _SELF_CLOSED.sub(r"<\1\2></\1>", after))
        else:
            texts.append(part)
    return "".join(texts)


def _decoded(content: bytes, name: str, encoding: str) -> str:
    """A text in ``encoding``; raises :class:`UserError` if it is not in it."""
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"document {name} is neither PDF nor text in {encoding.upper().removesuffix('-SIG')}; save it as UTF-8 "
            "text, HTML or PDF"
        ) from error
    return _checked(text, name)


def _checked(text: str, name: str) -> str:
    """A text with line ends LF; raises :class:`UserError` if it has a zero character."""
    if "\0" in text:
        raise UserError(f"document {name} is a binary file; save it as UTF-8 text, HTML or PDF")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _as_declared(content: bytes, name: str, encoding: str, left_out: list[str]) -> str:
    """A page in the encoding that it declares."""
    if encoding == "replacement":
        raise UserError(f"document {name} declares an encoding that browsers do not read; save it as UTF-8")
    text, replaced = _pages().decoded(content, encoding)
    n_beyond_ascii = sum(character > "\x7f" for character in text)
    if replaced > max(_FEW, n_beyond_ascii / 2):
        raise UserError(f"document {name} is not in {encoding.upper()}, which it declares; save it as UTF-8")
    if replaced:
        left_out.append(f"characters that are not in {encoding.upper()} replaced: {replaced:,}")
    return _checked(text, name)


def _of_pdf(content: bytes, name: str, left_out: list[str]) -> str:
    """The text of a PDF."""
    try:
        import pypdf  # noqa: F401

        from utaca.app import document_pdf
    except ImportError as error:
        raise UserError(f"document {name} is a PDF, which pypdf reads; run: pip install pypdf") from error
    text, phrases = document_pdf.read(content, name)
    left_out += phrases
    return text

"""Read documents from files (plain text, Markdown, HTML, PDF) and from standard input."""

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
# Ends of the names of web pages, and of those that are XML.
_HTML = (".html", ".htm", ".xhtml", ".xht")
_XHTML = (".xhtml", ".xht")
# The beginning of a web page: perhaps an XML declaration (group 1) and comments, then a first tag.
_PAGE = re.compile(r"\s*(<\?xml\b[^>]*>)?\s*(?>(?:<!--.*?-->\s*)*)<(?:!doctype\s+html|html|head|body)\b", re.I | re.S)
# Encodings by the byte order mark at the beginning of a file.
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_OTHERS = {
    "text in ISO-2022-JP": re.compile(r"[^\x1b]*\x1b\$[@B]"),
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
# Elements that HTML knows to have no end tag; an element that is closed in its tag, of any other name (group 1) with
# its attributes (group 2).
_VOID = "area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr"
_SELF_CLOSED = re.compile(rf"<(?!(?:{_VOID})\b)([a-z][\w:.-]*)(\s[^<>]*)?/>", re.I)


def read(paths: Sequence[str | Path], note: Callable[[str], None] = tell) -> str:
    """Read files and return their texts, joined in their order; ``-`` is standard input.

    ``note`` gets a sentence for each file that was not read whole; by default it goes to standard error.
    Raises :class:`UserError`, with a sentence that names the file, if a file is missing, unreadable or without text.
    """
    if list(map(str, paths)).count(STDIN) > 1:
        raise UserError("standard input can be read only once; give --document - only once")
    texts = []
    for path in map(str, paths):
        name = "standard input" if path == STDIN else _on_a_line(path)
        texts.append(_noted(_bytes(path, name), path, name, note))
    return SEPARATOR.join(texts)


def read_content(content: bytes, path: str, note: Callable[[str], None]) -> str:
    """Return the text of a file whose ``content`` is here, sent by another program; ``path`` is the file's name.

    ``note`` and errors are those of :func:`read`.
    """
    return _noted(content, path, _on_a_line(path), note)


def _noted(content: bytes, path: str, name: str, note: Callable[[str], None]) -> str:
    """The text of a file; ``note`` gets a sentence, with the file's ``name``, if something was left out."""
    left_out: list[str] = []
    text = _text_of(content, path, name, left_out)
    if left_out:
        note(f"document {name}: {_on_a_line('; '.join(left_out))}.")
    return text


def of_html(page: str, left_out: list[str] | None = None) -> str:
    """The text that an HTML page shows, with a line or paragraph for each block element and each row of a table.

    The list ``left_out`` gets a phrase for each kind of thing that was left out.
    """
    text, phrases = _pages().read(page)
    if left_out is not None:
        left_out += phrases
    return text


def _pages() -> ModuleType:
    """The module that reads web pages, imported here because only web pages need its packages.

    Raises :class:`UserError` if one of them is not installed.
    """
    try:
        from utaca.app import document_html
    except ImportError as error:
        raise UserError(f"reading a web page needs the package {error.name}; run: pip install {error.name}") from error
    return document_html


def _on_a_line(text: str) -> str:
    """A text in a line: line ends and control codes for the terminal, which file names may have, become U+FFFD."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", "\ufffd", text)


def _text_of(content: bytes, path: str, name: str, left_out: list[str]) -> str:
    """The text of a document by the ``content`` of its file ``path``; ``name`` is its name in errors.

    Adds a phrase to ``left_out`` for each kind of thing that was left out. Raises :class:`UserError` if no text is
    left.
    """
    # In a file named .pdf, other bytes may come before the mark %PDF-. In any other file it must come first, because a
    # text may mention it.
    start = content[:1024] if path.lower().endswith(".pdf") else content[:5]
    is_pdf = b"%PDF-" in start
    text = _of_pdf(content, name, left_out) if is_pdf else _of_text(content, name, path.lower(), left_out)
    if not text.strip():
        advice = "if it is a scan, run OCR on it first" if is_pdf else "give another document"
        # Phrases that recommend OCR, as the advice does, are left out.
        phrases = [phrase for phrase in left_out if "OCR" not in phrase]
        why = f" ({_on_a_line('; '.join(phrases))})" if phrases else ""
        raise UserError(f"document {name} has no text{why}; {advice}")
    # The first line keeps its indentation.
    return re.sub(r"\A(?:[^\S\n]*\n)+", "", text.rstrip())


def _bytes(path: str, name: str) -> bytes:
    """The content of a file or of standard input; raises :class:`UserError`, with ``name``, if it cannot be read."""
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
        raise UserError(
            f"document {name} cannot be read ({error.strerror}); check the file and its permissions"
        ) from error
    except ValueError as error:  # a zero byte
        raise UserError(f"document {name} is not a valid file name; check the path") from error


def _of_text(content: bytes, name: str, path: str, left_out: list[str]) -> str:
    """The text of a file of characters; of an HTML page, the text that it shows.

    ``path`` is in lower case; ``name`` and ``left_out`` are as for :func:`_text_of`. The encoding is that of the file's
    byte order mark, or the one that a page declares, or UTF-8.
    """
    encodings = [encoding for mark, encoding in _MARKS.items() if content.startswith(mark)]
    has_mark = bool(encodings)
    encoding = encodings[0] if has_mark else "utf-8"
    # To recognise what the file is; Latin-1 gives a character for each byte and never fails.
    whole = content.decode(encoding, errors="replace") if has_mark else content.decode("latin-1")
    start = whole[:4096]
    page = _PAGE.match(start)
    if page is None and not path.endswith(_HTML):
        text = _decoded(content, name, encoding)
        for kind, form in _OTHERS.items():
            if form.match(start):
                raise UserError(f"document {name} is {kind}; save it as UTF-8 text, HTML or PDF")
        return text
    declared = None if has_mark else _pages().declared(content)
    text = _as_declared(content, name, declared, left_out) if declared else _decoded(content, name, encoding)
    begins_as_xml = page is not None and page[1]
    if begins_as_xml or path.endswith(_XHTML):
        text = _as_html(text)
    return of_html(text, left_out)


def _as_html(page: str) -> str:
    """Convert XHTML to HTML, where ``<p/>`` would begin an element without ending it, and CDATA would be a comment."""
    before, *parts = page.split("<![CDATA[")
    texts = [_SELF_CLOSED.sub(r"<\1\2></\1>", before)]
    for part in parts:
        data, end, after = part.partition("]]>")
        if end:  # else the CDATA has no end, and is left as it is
            texts.append(html.escape(data) + _SELF_CLOSED.sub(r"<\1\2></\1>", after))
        else:
            texts.append(part)
    return "".join(texts)


def _decoded(content: bytes, name: str, encoding: str) -> str:
    """Decode a text; raises :class:`UserError` if it is not in ``encoding``."""
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"document {name} is neither a PDF nor text in {encoding.upper().removesuffix('-SIG')}; save it as UTF-8 "
            "text, HTML or PDF"
        ) from error
    return _checked(text, name)


def _checked(text: str, name: str) -> str:
    """A text with line ends LF; raises :class:`UserError` if it has a zero character."""
    if "\0" in text:
        raise UserError(f"document {name} is a binary file; save it as UTF-8 text, HTML or PDF")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _as_declared(content: bytes, name: str, encoding: str, left_out: list[str]) -> str:
    """Decode a page in the encoding that it declares; adds a phrase to ``left_out`` if some characters are not in it.

    Raises :class:`UserError` if so many are not that the declaration must be wrong.
    """
    if encoding == "replacement":  # the standard's name for encodings that are unsafe to read
        raise UserError(f"document {name} declares an encoding that browsers do not support; save it as UTF-8")
    text, replaced = _pages().decoded(content, encoding)
    n_beyond_ascii = sum(character > "\x7f" for character in text)
    if replaced > max(_FEW, n_beyond_ascii / 2):
        raise UserError(
            f"document {name} declares the encoding {encoding.upper()} but is not in that encoding; save it as UTF-8"
        )
    if replaced:
        left_out.append(f"characters that are not in {encoding.upper()} replaced: {replaced:,}")
    return _checked(text, name)


def _of_pdf(content: bytes, name: str, left_out: list[str]) -> str:
    """The text of a PDF; ``name`` and ``left_out`` are as for :func:`_text_of`."""
    try:
        import pypdf  # noqa: F401

        from utaca.app import document_pdf
    except ImportError as error:
        raise UserError(
            f"document {name} is a PDF; to read it, install the package pypdf: pip install pypdf"
        ) from error
    text, phrases = document_pdf.read(content, name)
    left_out += phrases
    return text

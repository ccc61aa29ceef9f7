"""Read the text of a PDF: of its pages, of the fields of its form, and of the remarks on it.

A damaged PDF may make pypdf raise an error of any class, at any access. So each page, field and remark is read under a
``try`` of its own: if it fails, the others are still read.
"""

import io
import logging
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pypdf import PageObject, PdfReader
from pypdf.errors import DependencyError
from pypdf.generic import ContentStream, DictionaryObject, NameObject, StreamObject

from utaca.errors import UserError, cause

_FEW = 100
"""A page with a picture and fewer characters than these may be a scan with a stamp or a number on it."""
_GARBLED = 0.05
"""A page is garbled if a larger share of its characters cannot be read: no characters of texts, or of a font that does
not say which letters its codes mean."""
# Flags of annotations and of fields (ISO 32000-2, tables 167, 228 and 230).
_HIDDEN = 1 << 1
_NO_VIEW = 1 << 5
_PASSWORD = 1 << 13
_PUSH_BUTTON = 1 << 16
# Annotations that show no text of their own; a pop-up shows its parent's.
_NO_REMARKS = ("/Link", "/Popup", "/Screen", "/Movie", "/Sound", "/PrinterMark", "/TrapNet", "/3D", "/RichMedia")
# Operators of a page's content that show text or a picture.
_SHOWS = (b"Tj", b"TJ", b"'", b'"', b"Do", b"INLINE IMAGE")
# How pypdf's warnings of text that it lacks begin.
_LOSSES = ("Impossible to decode", "Exceeded", "Error ", "Object ", "Page contents are not", "Page resources are not")
_DEPTH, _MANY = 64, 100_000
"""Most levels, and most fields or pictures, that are followed: a damaged file may nest them without end."""


def read(content: bytes, name: str) -> tuple[str, list[str]]:
    """Read a PDF: return its text, page after page, and a phrase for each kind of thing that was left out of it.

    ``name`` is for the :class:`UserError` that is raised if the file is locked, or if nothing of it can be read.
    """
    with _heard() as warnings:
        try:
            pdf = PdfReader(io.BytesIO(content))
            if pdf.is_encrypted and not pdf.decrypt(""):
                raise UserError(f"document {name} is locked by a password; save it without a password")
            reading = _Reading(pdf, warnings)
            texts = [reading.page(number, page) for number, page in enumerate(pdf.pages, 1)]
            if len(reading.failed) == len(texts) > 0:
                raise reading.failed[1]  # no page can be read: the error of page 1 stands for all
            texts.append("\n".join(reading.rest()))
            # A whole file ends in %%EOF; an object (endobj) after the last of these means that the end is missing.
            is_cut = content.rfind(b"%%EOF") < content.rfind(b"endobj")
            left_out = list(reading.left_out(cut=is_cut))
        except UserError:
            raise
        except DependencyError as error:
            raise UserError(
                f"document {name} is encrypted with AES; to read it, install the package cryptography: pip install "
                "cryptography"
            ) from error
        except Exception as error:  # pypdf raises errors of every class for damaged files
            raise UserError(
                f"document {name} is a PDF that cannot be read ({cause(error)}); export it as PDF again"
            ) from error
    return "\n\n".join(text for text in texts if text.strip()), left_out


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Collect pypdf's warnings in the list that is yielded; the user sees none of them.

    They speak of objects and tables of the file, not of the document.
    """
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    logger = logging.getLogger("pypdf")
    handler.emit = lambda record: warnings.append(record.getMessage())
    propagate = logger.propagate
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield warnings
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


class _Reading:
    """Reads a PDF page by page (:meth:`page`, then :meth:`rest`), and notes what is left out (:meth:`left_out`).

    ``failed`` has the pages that could not be read, with their errors. ``warnings`` are those of :func:`_heard`.
    """

    def __init__(self, pdf: PdfReader, warnings: list[str]) -> None:
        self._pdf = pdf
        self._warnings = warnings
        self._layers = _hidden_layers(pdf)
        self._pages = 0  # number of the last page read
        # Numbers of pages: without text; of pictures and hardly any text; garbled; damaged and read in part.
        self._empty: list[int] = []
        self._pictures: list[int] = []
        self._garbled: list[int] = []
        self._damaged: list[int] = []
        self.failed: dict[int, Exception] = {}
        self._unread = False  # whether a field or remark could not be read
        self._hidden = 0  # hidden fields and remarks
        self._hidden_layers = False  # whether a page has hidden layers with text
        self._fields: set[str] = set()  # full names of the fields read
        self._attached: list[str] = []  # names of attached files

    def page(self, number: int, page: PageObject) -> str:
        """The text of a page with its fields and remarks; "" if it cannot be read."""
        self._pages = number
        self._warnings.clear()
        n_nameless = 0

        # pypdf calls this for each piece of text, with two matrices that place the piece, its font and the font's size.
        def count_nameless(piece: str, _cm: Any, _tm: Any, font: Any, _size: Any) -> None:
            nonlocal n_nameless
            n_nameless += _nameless(piece, font)

        try:
            if self._layers:
                self._hidden_layers |= _leave_out(page, self._layers)
            text = page.extract_text(visitor_text=count_nameless)
        except DependencyError:
            raise
        except Exception as error:  # other pages may be whole
            self.failed[number] = error
            return ""
        if any(warning.startswith(_LOSSES) for warning in self._warnings):
            self._damaged.append(number)
        letters = [letter for letter in text if not letter.isspace()]
        if not letters:
            self._empty.append(number)
        elif n_nameless + sum(map(_is_unreadable, letters)) > _GARBLED * len(letters):
            self._garbled.append(number)
        elif len(letters) < _FEW and _has_picture(page):
            self._pictures.append(number)
        parts = [text.strip("\n"), *self._remarks(page)]
        return "\n".join(part for part in parts if part.strip())

    def rest(self) -> Iterator[str]:
        """Yield the values of the form's fields that are on no page; to be called after all pages were read.

        The form (/AcroForm) is a tree of fields: /Kids of a node are the fields below it, or its places on pages. The
        values that :meth:`page` has read are not read again (:meth:`_field`).
        """
        todo = self._parts(_dictionary(self._pdf.root_object.get("/AcroForm")).get("/Fields"))
        n_seen = 0
        while todo and n_seen < _MANY:
            field = todo.pop(0)
            n_seen = n_seen + 1
            if "/Kids" in field:
                todo[:0] = self._parts(field["/Kids"])
            elif "/T" in field:  # without a name (/T) it is only a place on a page where its parent is shown
                try:
                    yield from self._field(None, field)
                except Exception:
                    self._unread = True

    def left_out(self, *, cut: bool) -> Iterator[str]:
        """Yield phrases that say what was left out; ``cut``: the end of the file is missing."""
        scans = "if they are scans, run OCR on them first"
        if self._empty:
            yield f"{_listed(self._empty, self._pages)} without text; {scans}"
        if self._pictures:
            yield f"{_listed(self._pictures, self._pages)} with pictures and hardly any text; {scans}"
        if self._garbled:
            yield f"{_listed(self._garbled, self._pages)} with fonts that have no character map; use OCR"
        if self.failed:
            yield f"{_listed(self.failed, self._pages)} damaged and not read"
        if self._damaged:
            yield f"{_listed(self._damaged, self._pages)} damaged and read in part"
        if self._unread:
            yield "some fields or remarks that are damaged not read"
        with suppress(Exception):  # a tree that names no count
            count = self._pdf.root_object["/Pages"].get_object()["/Count"]
            if count > self._pages:
                yield f"{count - self._pages} of {count} pages missing in the file"
        if cut:
            yield "the end of the file is missing, and with it perhaps pages"
        if self._hidden_layers:
            yield "text of hidden layers left out"
        if self._hidden:
            yield f"{self._hidden} hidden fields or remarks left out"
        with suppress(Exception):  # no form
            if "/XFA" in self._pdf.root_object["/AcroForm"].get_object():
                yield "an XFA form: only its pages and fields were read; print it to PDF"
        with suppress(Exception):  # a damaged list
            self._attached += [attachment.name for attachment in self._pdf.attachment_list]
        if self._attached:
            names = ", ".join(dict.fromkeys(self._attached))
            yield f"attached files not read ({names if len(names) < 100 else names[:100] + '...'})"

    def _remarks(self, page: PageObject) -> Iterator[str]:
        """Yield the values of fields and the texts of other annotations of a page; hidden ones are only counted."""
        for note in self._parts(page.get("/Annots")):
            try:
                kind = note.get("/Subtype")
                texts = list(self._field(page, note) if kind == "/Widget" else self._remark(page, note, kind))
                is_hidden = int(note.get("/F", 0)) & (_HIDDEN | _NO_VIEW) or _is_off(note, self._layers)
            except Exception:  # other annotations may be readable
                self._unread = True
                continue
            if is_hidden:
                self._hidden += any(texts)
            else:
                yield from texts

    def _parts(self, listed: Any) -> list[DictionaryObject]:
        """The dictionaries of a list in the file; none if the list is damaged."""
        try:
            return [_dictionary(part) for part in _object(listed) or ()]
        except Exception:
            self._unread = True
            return []

    def _remark(self, page: PageObject, note: DictionaryObject, kind: Any) -> Iterator[str]:
        """Yield the text of an annotation that is not a field, if it has one; ``kind`` is its subtype.

        The text is in /Contents, or in /RC as rich text; /T is the author.
        """
        if kind == "/FileAttachment":
            # /UF and /F are both the name of the file, /UF in Unicode.
            file = note.get("/FS", DictionaryObject()).get_object()
            self._attached.append(_text(file.get("/UF")) or _text(file.get("/F")) or "without a name")
        if kind in _NO_REMARKS:
            return
        contents = _text(note.get("/Contents")) or _rich(note.get("/RC"))
        if kind in ("/FreeText", "/Stamp", "/Watermark"):  # they show it on the page
            yield contents or _drawn(page, note)
        elif contents:
            author = _text(note.get("/T"))
            yield f"Comment by {author}: {contents}" if author else f"Comment: {contents}"

    def _field(self, page: PageObject | None, widget: DictionaryObject) -> Iterator[str]:
        """Yield "LABEL: VALUE" of the field that a widget shows, if it has a value and was not read before.

        ``page`` is None for a field that stands on no page. Passwords are only counted, as hidden fields.
        """
        # Entries of a field: its kind /FT (/Btn: a button or box, /Tx: a text), flags /Ff, value /V, and /TU, the label
        # that users see. Entries of a widget: the caption /CA in /MK of a push button, and the state /AS of a box.
        field, name = _inherited(widget)
        is_known = name in self._fields
        is_button = field.get("/FT") == "/Btn"
        if name:
            self._fields.add(name)
        flags = int(field.get("/Ff", 0))
        if is_known and name:
            return
        if is_button and flags & _PUSH_BUTTON:
            yield _text(_dictionary(widget.get("/MK")).get("/CA")) or _drawn(page, widget)
        elif flags & _PASSWORD and field.get("/FT") == "/Tx":
            self._hidden += "/V" in field
        else:
            # The state that the field's boxes show, if it is one of boxes to tick.
            boxes = (widget, *self._parts(field.get("/Kids")))
            states = [box.get("/AS") for box in boxes]
            ticked = [state for state in states if state not in (None, "/Off")]
            state = ticked[0] if ticked else None
            value = _value(field, state) or ("" if is_button else _drawn(page, widget))
            label = _text(field.get("/TU")) or name
            if value:
                yield f"{label}: {value}" if label else value


def _inherited(widget: DictionaryObject) -> tuple[dict[str, Any], str]:
    """A widget's entries, completed by those that it inherits from its parent fields (/Parent), and its full name.

    The full name is like "form.section.field".
    """
    field: dict[str, Any] = {}
    names: list[str] = []
    part: Any = widget
    for _ in range(_DEPTH):
        field = {**part, **field}  # The nearer entry wins.
        name = _text(part.get("/T"))
        if name:
            names.insert(0, name)
        if "/Parent" not in part:
            break
        part = _dictionary(part["/Parent"])
    return field, ".".join(names)


def _value(field: Mapping[str, Any], state: Any) -> str:
    """The value (/V) of a field as the field shows it; "" if it has none.

    ``state`` is the state of the ticked one of its boxes, None if it has no such box.
    """
    value = _object(field.get("/V"))
    options = _object(field.get("/Opt")) or ()
    kind = field.get("/FT")
    if kind == "/Btn":
        # The state of a box is a name, or an index into the texts of the options (/Opt).
        shown = str(value if isinstance(value, str) else state or "/Off").removeprefix("/")
        is_index = shown.isdigit() and int(shown) < len(options)
        return _option(options, int(shown)) if is_index else shown
    if kind == "/Sig":  # the value is a signature
        return f"signed {_text(_dictionary(value).get('/Name'))}".strip() if value else ""
    # What a list or text shows for each value that it may hold; the value is what the form would send.
    shown_by_value = {}
    for number, reference in enumerate(options):
        option = reference.get_object()
        sent = option[0] if isinstance(option, list) and option else option
        shown_by_value[_text(sent)] = _option(options, number)
    values = value if isinstance(value, list) else [value]
    texts = [text for text in map(_text, values) if text]
    # /RV is the value as rich text.
    return ", ".join(shown_by_value.get(text, text) for text in texts) or _rich(field.get("/RV"))


def _option(options: Sequence[Any], number: int) -> str:
    """What a field shows for one of its options, which is a text, or a pair of the value and the text."""
    option = options[number].get_object()
    return _text(option[-1] if isinstance(option, list) and option else option)


def _text(value: Any) -> str:
    """The text that a value of the file is: a text, a stream of one, or a number; "" for any other."""
    value = _object(value)
    if isinstance(value, StreamObject):
        value = value.get_data()
    if isinstance(value, bytes):
        value = value.decode("utf-16" if value[:2] in (b"\xfe\xff", b"\xff\xfe") else "latin-1", errors="replace")
    if isinstance(value, int | float):
        return str(value)
    return value.replace("\r\n", "\n").replace("\r", "\n").strip() if isinstance(value, str) else ""


def _rich(value: Any) -> str:
    """The plain text of rich text, which is XHTML."""
    text = _text(value)
    if not text:
        return ""
    # Only a form with rich text needs the packages that read web pages.
    from utaca.app import document_html

    return document_html.read(text)[0]


def _drawn(page: PageObject | None, note: DictionaryObject) -> str:
    """The text that an annotation draws on a page, by its normal appearance (/N in /AP); "" if there is none."""
    drawn = _dictionary(_dictionary(note.get("/AP")).get("/N"))
    if not isinstance(drawn, StreamObject):  # an appearance for each state of a box; /AS is its present state
        drawn = _dictionary(drawn.get(note.get("/AS", "")))
    return page.extract_xform_text(drawn).strip() if page and isinstance(drawn, StreamObject) else ""


def _object(value: Any) -> Any:
    """The object that a reference leads to; any other value as it is."""
    return value.get_object() if hasattr(value, "get_object") else value


def _dictionary(value: Any) -> DictionaryObject:
    """The dictionary that a value is or leads to; an empty one if there is none."""
    value = _object(value)
    return value if isinstance(value, DictionaryObject) else DictionaryObject()


def _is_unreadable(letter: str) -> bool:
    """Whether texts do not have a character: a control character, or one of no use or private use."""
    return letter == "\ufffd" or unicodedata.category(letter) in ("Cc", "Cn", "Co", "Cs")


def _nameless(piece: str, font: Any) -> int:
    """How many characters of a text are codes or glyph names, of a font that does not say which letters they mean."""
    font = _dictionary(font)
    coding = _object(font.get("/Encoding"))
    if "/ToUnicode" in font:  # the font's table from codes to letters
        return 0
    if isinstance(coding, DictionaryObject):
        # The font names the glyphs of some codes (/Differences). Of a name that means no letter, as /g12, pypdf gives
        # the name itself.
        if "/" not in piece:
            return 0
        names = {str(difference) for difference in coding.get("/Differences", ())}
        return sum(len(name) for name in re.findall(r"/[^\s/]+", piece) if name in names)
    # The codes of a composite font (/Type0) under an Identity encoding are the numbers of its glyphs.
    has_numbers = font.get("/Subtype") == "/Type0" and str(coding).startswith("/Identity")
    return len(piece.strip()) if has_numbers else 0


def _has_picture(page: PageObject) -> bool:
    """Whether the page, or a drawing that it uses, has a picture.

    Pictures and drawings are the /XObject of its /Resources; a drawing (form XObject, no form with fields) has
    /Resources of its own. A picture may also be in the page's content itself, which pypdf reads as INLINE IMAGE.
    """
    todo = [(_dictionary(page.get("/Resources")), 0)]
    seen = 0
    while todo:
        resources, depth = todo.pop()
        objects = _dictionary(resources.get("/XObject"))
        for drawn in map(_dictionary, objects.values()):
            seen += 1
            if drawn.get("/Subtype") == "/Image":
                return True
            if depth < _DEPTH and seen < _MANY:
                todo.append((_dictionary(drawn.get("/Resources")), depth + 1))
    content = page.get_contents()
    return content is not None and any(operator == b"INLINE IMAGE" for _, operator in content.operations)


def _listed(pages: Iterable[int], number: int) -> str:
    """Write numbers of pages, of ``number`` pages in all, as a phrase like ``pages 2-4, 7 of 10``."""
    ranges: list[list[int]] = []
    for page in pages:
        if ranges and page == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], page]
        else:
            ranges.append([page])
    shown = ", ".join("-".join(map(str, numbers)) for numbers in ranges[:20])
    if len(ranges) > 20:
        shown += ", ..."
    are_many = len(ranges) > 1 or len(ranges[0]) > 1
    return f"{'pages' if are_many else 'page'} {shown} of {number}"


# Layers (optional content, ISO 32000-2, 8.11).


def _hidden_layers(pdf: PdfReader) -> set[int]:
    """The object numbers of the layers that a viewer does not show when it opens the file.

    These are, by the default configuration /D of /OCProperties: all layers (/OCGs) if its /BaseState is /OFF, except
    those listed under /ON, and those listed under /OFF.
    """
    with suppress(Exception):  # a damaged list hides nothing
        properties = _dictionary(pdf.root_object.get("/OCProperties"))
        first = _dictionary(properties.get("/D"))
        hidden = set()
        if first.get("/BaseState") == "/OFF":
            hidden = {layer.idnum for layer in properties["/OCGs"]}
        hidden -= {layer.idnum for layer in first.get("/ON", ())}
        return hidden | {layer.idnum for layer in first.get("/OFF", ())}
    return set()


def _is_off(owner: DictionaryObject, layers: set[int], key: str = "/OC") -> bool:
    """Whether the layer that ``owner`` names under ``key``, or a rule about several layers, hides what it belongs to.

    ``layers`` are the hidden ones (:func:`_hidden_layers`).
    """
    if not layers or key not in owner:
        return False
    reference = owner.raw_get(key)
    rule = _dictionary(owner[key])
    if rule.get("/Type") != "/OCMD":  # a layer itself, and no rule about layers
        return getattr(reference, "idnum", None) in layers
    members = rule.raw_get("/OCGs") if "/OCGs" in rule else []
    listed = _object(members)
    if not isinstance(listed, list):
        listed = [members]
    is_off = [member.idnum in layers for member in listed]
    # Whether each kind of rule (/P) shows the content. Without a kind it is /AnyOn; without layers it hides nothing.
    by_rule = {
        "/AllOn": not any(is_off),
        "/AnyOff": any(is_off),
        "/AllOff": all(is_off),
        "/AnyOn": not all(is_off),
    }
    is_shown = by_rule.get(rule.get("/P"), by_rule["/AnyOn"])
    return bool(is_off) and not is_shown


def _leave_out(page: PageObject, layers: set[int]) -> bool:
    """Remove the text and pictures of hidden ``layers`` from a page; returns whether there were any."""
    content = page.get_contents()
    if content is None:
        return False
    resources = _dictionary(page.get("/Resources"))
    properties = _dictionary(resources.get("/Properties"))
    objects = _dictionary(resources.get("/XObject"))
    kept: list[tuple[Any, Any]] = []
    hides: list[bool] = []  # for each marked part that is open, whether its layer is hidden
    found = False
    # BMC and BDC open a marked part, and EMC closes it; parts may nest. "/OC KEY BDC" opens a part of a layer, which
    # the page's /Properties have under KEY. Do draws an object, which may name a layer of its own.
    for operands, operator in content.operations:
        if operator in (b"BMC", b"BDC"):
            is_layer = operator == b"BDC" and len(operands) == 2 and operands[0] == "/OC"
            hides.append(is_layer and isinstance(operands[1], str) and _is_off(properties, layers, operands[1]))
        elif operator == b"EMC" and hides:
            hides.pop()
        drawn = objects.get(operands[0]) if operator == b"Do" and operands else None
        if operator in _SHOWS and (any(hides) or _is_off(_dictionary(drawn), layers)):
            found = True
            if operator in (b"'", b'"'):
                # These also move to the next line, as T* does.
                kept.append(([], b"T*"))
        else:
            kept.append((operands, operator))
    if found:
        shown = ContentStream(None, page.pdf)
        shown.operations = kept
        page[NameObject("/Contents")] = shown
    return found

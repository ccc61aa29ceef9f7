"""Read the text of an HTML page as a browser would show it.

The tree is Lexbor's, which parses as browsers do. A page's own style sheets and ``style`` attributes are honoured where
they hide text or keep its white space. What a style sheet in another file, a script, a colour or a position hides is
read: none of these is known here.
"""

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import tinycss2
import webencodings
from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

# Never text of the page: what it is made from, and the parts of drawings that are not drawn in place.
_NO_TEXT = re.compile(
    "head|title|script|style|template|base|link|meta|param|source|track|area|datalist|desc|defs|metadata|symbol|"
    "marker|clippath|mask|pattern|filter|lineargradient|radialgradient|annotation|annotation-xml"
)
# Their content is for browsers that cannot show the element itself.
_FALLBACKS = frozenset(("noframes", "noembed", "audio", "video", "canvas", "object", "iframe", "embed", "frame"))
# Elements with a blank line before and after them.
_PARAGRAPHS = re.compile(
    "address|article|aside|blockquote|details|dialog|dir|dl|fieldset|figure|footer|form|h1|h2|h3|h4|h5|h6|header|"
    "hgroup|hr|listing|main|menu|nav|ol|p|plaintext|pre|search|section|table|ul|xmp"
)
# Elements that begin and end a line.
_LINES = re.compile(
    "body|caption|center|dd|div|dt|figcaption|foreignobject|legend|li|optgroup|option|select|summary|svg|tbody|"
    "text|textarea|tfoot|thead|tr"
)
# Most elements of most pages; without attributes they have their parent's style.
_PLAIN = frozenset(("a", "b", "br", "div", "em", "i", "li", "option", "p", "span", "strong", "td", "th", "tr"))
# Elements at whose beginning and end a row of cells ends.
_ROWS = frozenset(("table", "tbody", "tfoot", "thead", "tr"))
# Browsers keep the white space in these.
_KEPT = frozenset(("listing", "plaintext", "pre", "textarea", "xmp"))
# Types of ``input`` that do not show their value; that of a password is dots.
_NO_VALUE = frozenset(("hidden", "checkbox", "radio", "file", "color", "range", "image"))
# What a property says of text, by its keyword; a value that is not here, as inherit, leaves what the parent has. What
# is said of white space is the name of a method of _Lines.
_KEYWORDS = {
    "content-visibility": {"hidden": "none", "visible": "shown", "auto": "shown"},
    "visibility": {"hidden": "none", "collapse": "none", "visible": "shown", "initial": "shown"},
    "white-space": {
        **dict.fromkeys(("normal", "nowrap", "collapse", "initial"), "joined"),
        **dict.fromkeys(("pre", "pre-wrap", "break-spaces", "preserve"), "kept"),
        **dict.fromkeys(("pre-line", "preserve-breaks"), "lines"),
    },
}
_NOSCRIPT = re.compile(r"<(/?)noscript(?=[\s/>])", re.IGNORECASE)
_ANGLES = frozenset(("deg", "grad", "rad", "turn"))
_RELATIVE = frozenset(("em", "ex", "ch", "cap", "ic", "lh"))
_CHARSET = re.compile(r"""charset\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s;"']+))""", re.IGNORECASE)
_LONG = 5000
"""Characters that the selectors of a rule within others may have."""
_WIDTH = 1280
"""Pixels that a browser's window is wide, for rules that ask."""
_WIDTH_AS = re.compile(r"\(\s*((?:min|max)-width\s*:|width\s*[<>]=?)\s*(\d+\.?\d*|\.\d+)(px|em|rem)\s*\)")
_FEW = 200
"""A page of fewer characters of text that has scripts is taken for one whose text its scripts make."""


def read(page: str) -> tuple[str, list[str]]:
    """Read a page: return the text that it shows, and a phrase for each kind of thing that was left out of it."""
    shown = _Page()
    text = shown.read(page)
    return text, list(shown.left_out(len(text)))


# Encodings (https://encoding.spec.whatwg.org).


def declared(content: bytes) -> str | None:
    """The encoding that a page declares, as browsers take it, by its name in the Encoding Standard.

    None if it declares none; a label that the standard does not know is not a declaration. A page may declare it by
    ``<meta charset="...">``, by ``<meta http-equiv="content-type" content="text/html; charset=...">``, or as XML by
    ``<?xml encoding="..."?>``; of several, the first in this order counts that is known.
    """
    page = content.decode("latin-1")  # a character for each byte, which never fails
    labels = []
    if re.search("charset", page, re.IGNORECASE):
        for meta in LexborHTMLParser(page).css("meta"):
            attributes = meta.attributes
            labels.append(attributes.get("charset"))
            if (attributes.get("http-equiv") or "").lower() == "content-type":
                charset = _CHARSET.search(attributes.get("content") or "")
                labels.append(charset and (charset[1] or charset[2] or charset[3]))
    declaration = re.match(r"""\s*<\?xml\b[^>]*?\bencoding\s*=\s*["']([^"'>]*)["']""", page)
    if declaration:
        labels.append(declaration[1])
    encodings = [webencodings.lookup(label) for label in labels if label]
    known = [encoding.name for encoding in encodings if encoding]
    if not known:
        return None
    # As the standard says: the declaration was read byte by byte, so the page is not in UTF-16.
    replaced = {"utf-16le": "utf-8", "utf-16be": "utf-8", "x-user-defined": "windows-1252"}
    return replaced.get(known[0], known[0])


def decoded(content: bytes, encoding: str) -> tuple[str, int]:
    """Decode a page in an encoding of the standard: return its text, and the number of characters that are not in it.

    Each of these becomes U+FFFD in the text.
    """
    # Browsers read GBK as its superset GB 18030.
    codec = codecs.lookup("gb18030") if encoding == "gbk" else webencodings.lookup(encoding).codec_info
    try:
        text = codec.decode(content, "strict")[0]
        replaced = 0
    except UnicodeDecodeError:
        text = codec.decode(content, _AS_BROWSERS)[0]
        replaced = text.count("\ufffd")
    if encoding == "koi8-u":
        # The standard's has two letters of Belarusian where Python's has lines.
        text = text.translate({0x255D: 0x45E, 0x256C: 0x40E})
    return text, replaced


def _as_browsers(error: UnicodeError) -> tuple[str, int]:
    """Error handler for ``decode``: what browsers make of bytes that Python does not know in an encoding.

    Returns the text in their place, and where decoding continues.
    """
    data = error.object[error.start : error.start + 2]
    # Of a single-byte encoding (charmap): bytes 0x80 to 0x9F without a character are the control codes of that number.
    if error.encoding == "charmap" and 0x80 <= data[0] < 0xA0:
        return chr(data[0]), error.start + 1
    if error.encoding == "gb18030" and data[0] == 0x80:
        return "\u20ac", error.start + 1
    # NEC's signs in row 13 of the Japanese character set, which Python's EUC-JP and ISO-2022-JP lack and EUC-JIS-2004
    # has. ISO-2022-JP writes the same two bytes without their highest bits.
    row = {"euc_jp": 0xAD, "iso2022_jp": 0x2D}.get(error.encoding)
    if row == data[0] and len(data) == 2:
        with suppress(UnicodeDecodeError):
            return bytes(byte | 0x80 for byte in data).decode("euc_jis_2004"), error.start + 2
    return "\ufffd", error.end


_AS_BROWSERS = "utaca.as_browsers"
codecs.register_error(_AS_BROWSERS, _as_browsers)


# The tree.


class _Lines:
    """A text that grows, with white space as a page shows it; ``parts`` are its pieces.

    :meth:`joined`, :meth:`lines` and :meth:`kept` add text, each with another rule for its white space.
    """

    def __init__(self) -> None:
        self.parts: list[str] = []
        # Line ends and spaces that are still to be written, before the next text, so that none is left at the end.
        self._breaks = 0
        self._space = ""
        self._is_empty_line = True
        self._is_empty_cell = False  # whether the text ends with the beginning of a table's cell
        self._has_cells = False  # whether the row has cells already

    def end(self, lines: int, *, row: bool = False) -> None:
        """End the line if it holds text; with 2 ``lines`` a blank one follows. Only a row's end ends an empty cell."""
        if row or not self._is_empty_cell:
            self._breaks = max(self._breaks, lines)
            self._space = ""
            self._is_empty_line = True
            self._is_empty_cell = False
            self._has_cells = self._has_cells and not row

    def feed(self, most: int | None) -> None:
        """End the line, also an empty one, but with at most ``most`` line ends in a row; None: any number of them."""
        if most is None:
            self._breaks += 1
        else:
            self._breaks = max(self._breaks, min(most, self._breaks + 1))
        self._space = ""
        self._is_empty_line = True
        self._is_empty_cell = False

    def begin_cell(self) -> None:
        """Begin a cell on the line of its row."""
        if self._has_cells:
            # A line end after the cell before, as that of a paragraph in it, is not written.
            self._breaks = 0
            self._space = " "
        self._write("|")
        self._space = " "
        self._is_empty_cell = True
        self._has_cells = True

    def joined(self, data: str) -> None:
        """Add text; each run of white space becomes one space."""
        words = " ".join(data.split())
        if data[:1].isspace() and not self._is_empty_line:
            self._space = " "
        if words:
            self._write(words)
            self._space = " " if data[-1].isspace() else ""

    def lines(self, data: str) -> None:
        """Add text and keep its line ends."""
        for number, line in enumerate(data.split("\n")):
            if number:
                self.feed(None)
            self.joined(line)

    def kept(self, data: str) -> None:
        """Add text and keep its white space, except at the end of a line."""
        for number, line in enumerate(data.split("\n")):
            if number:
                self.feed(None)
            words = line.strip()
            start = line.find(words)
            self._space += line[:start] if words else line
            if words:
                self._write(words)
                self._space = line[start + len(words) :]

    def _write(self, text: str) -> None:
        """Write the line ends and the space that are due, and then the text."""
        if self._breaks and self.parts:
            self.parts.append("\n" * self._breaks)
        self.parts.append(self._space + text)
        self._breaks = 0
        self._space = ""
        self._is_empty_line = False
        self._is_empty_cell = False


@dataclass(frozen=True, slots=True)
class _Style:
    """The style of an element, as far as the text of the element and its descendants depends on it."""

    removed: bool = False
    """It is not text of the page."""
    hidden: bool = False
    """It is not shown, and no style of a descendant changes that."""
    invisible: bool = False
    """It is not shown, but a descendant's ``visibility`` may show that descendant."""
    tiny: bool = False
    """In a font of size 0."""
    space: str = "joined"
    """The method of :class:`_Lines` that takes the text."""
    drawing: bool = False
    """In a drawing, outside of its texts."""
    formula: bool = False
    """In a formula (MathML), whose parts are set off by spaces."""

    @property
    def shown(self) -> bool:
        return not (self.removed or self.hidden or self.invisible or self.tiny or self.drawing)


class _Page:
    """Reads a page (:meth:`read`), and counts what is left out (:meth:`left_out`)."""

    def __init__(self) -> None:
        self._lines = _Lines()
        self._trees: list[LexborHTMLParser] = []  # of the page and of pages within it
        self._styles: dict[int, dict[str, tuple[tuple, str]]] = {}  # what style sheets say (see _sheets)
        self._chosen: set[int] = set()  # options of lists, by mem_id
        # Characters of hidden text, and numbers of things that are not read.
        self._hidden = self._embedded = self._pictures = self._formulas = self._scripts = 0
        self._elsewhere = False  # whether it sends browsers on to another page

    def read(self, page: str) -> str:
        """The page's text."""
        # Nodes that are still to begin or, if marked True, to end; without recursion, since pages nest without bound.
        todo = [(self._root(page), _Style(), False)]
        while todo:
            node, style, is_end = todo.pop()
            if is_end:
                self._break(node.tag.lower(), style)
            elif node.is_text_node:
                self._text(node.text_content or "", style)
            elif node.is_element_node:
                tag = node.tag.lower()
                style = self._style(node, tag, style)
                todo.append((node, style, True))
                inner, style = self._begin(node, tag, style)
                todo.extend((child, style, False) for child in reversed(inner))
        return "".join(self._lines.parts)

    def left_out(self, length: int) -> Iterator[str]:
        """Yield phrases that say what was left out of the page's text, which has ``length`` characters."""
        if self._hidden:
            yield f"{_number(self._hidden, 'character')} of hidden text left out"
        if self._embedded:
            yield f"{_number(self._embedded, 'embedded page or object', 'embedded pages or objects')} not read"
        if self._pictures:
            yield f"{_number(self._pictures, 'picture')} without a description not read"
        if self._formulas:
            yield f"{_number(self._formulas, 'formula', 'formulas')} read without layout"
        if self._elsewhere:
            yield "the page that it sends browsers on to not read"
        if self._scripts and length < _FEW:
            yield "text made by scripts not read (if you need it, print the page to PDF in a browser)"

    def _root(self, page: str) -> LexborNode:
        """Parse a page: note its style sheets, scripts and where it sends browsers; return its root element."""
        # For browsers that run scripts, the content of noscript is not markup; for Lexbor, that of noembed is not.
        tree = LexborHTMLParser(_NOSCRIPT.sub(r"<\1noembed", page))
        self._trees.append(tree)  # lest its nodes go
        self._styles |= _sheets(tree)
        kinds = [(script.attributes.get("type") or "module").lower() for script in tree.css("script")]
        self._scripts += sum(kind == "module" or "javascript" in kind for kind in kinds)
        refreshes = tree.css("meta[http-equiv=refresh i]")
        contents = [(refresh.attributes.get("content") or "").lower() for refresh in refreshes]
        self._elsewhere |= any("url" in content for content in contents)
        return tree.root

    def _style(self, node: LexborNode, tag: str, outer: _Style) -> _Style:
        """The style of an element whose parent has the style ``outer``."""
        attributes = node.attributes
        cascaded = dict(self._styles.get(node.mem_id, ()))
        if not attributes and not cascaded and tag in _PLAIN:
            return outer
        if attributes.get("style"):
            # (True,) is heavier than the weight of any style sheet, which begins with False (see _sheets).
            _cascade(cascaded, _declared(attributes["style"]), (True,))
        declared = {name: value for name, (_, value) in cascaded.items()}
        # Such elements are not shown unless a style sets ``display``.
        is_closed = "hidden" in attributes or "popover" in attributes or (tag == "dialog" and "open" not in attributes)
        display = declared.get("display", "none" if is_closed else "")
        # A template is shown only if it is its parent's shadow tree (``shadowrootmode``).
        is_text = not _NO_TEXT.fullmatch(tag) or "shadowrootmode" in attributes
        # What the values of a property that descendants may set back say; any other value: as the parent.
        hides = {"none": True, "shown": False}
        return replace(
            outer,
            removed=outer.removed or not is_text,
            hidden=outer.hidden or "none" in (display, declared.get("opacity"), declared.get("content-visibility")),
            invisible=hides.get(declared.get("visibility", ""), outer.invisible),
            tiny=hides.get(declared.get("font-size", ""), outer.tiny),
            space=declared.get("white-space") or ("kept" if tag in _KEPT else outer.space),
            drawing=tag == "svg" or (outer.drawing and tag not in ("text", "foreignobject")),
        )

    def _begin(self, node: LexborNode, tag: str, style: _Style) -> tuple[Sequence[LexborNode], _Style]:
        """Begin an element: write what stands before its content; return the nodes in it to read, and their style."""
        if style.removed:
            return (), style
        attributes = node.attributes
        inner = _children(node)
        self._break(tag, style)
        if tag == "br" and style.shown:
            # Where white space is joined, several of them make one blank line at most.
            self._lines.feed(2 if style.space == "joined" else None)
        elif tag in ("td", "th") and style.shown:
            self._lines.begin_cell()
        elif tag == "img":
            self._picture(attributes, style)
        elif tag == "input":
            self._input(attributes, style)
        elif tag == "select":
            self._chosen |= _chosen(node)
        elif tag == "option":
            self._text("[x] " if node.mem_id in self._chosen else "[ ] ", style)
            if attributes.get("label"):  # shown in place of the content
                self._text(attributes["label"], style)
                inner = ()
        elif tag == "optgroup":
            self._text(f"{attributes.get('label') or ''}\n", replace(style, space="lines"))
        elif tag == "math" and not style.formula:
            # In TeX if the page has that, else as the text of its parts, which lacks the layout.
            formula = attributes.get("alttext") or _tex(node)
            self._text(formula, style)
            self._formulas += style.shown and not formula
            return (() if formula else inner), replace(style, formula=True)
        elif tag == "template":  # a shadow tree: every other template is removed
            inner = list(chain.from_iterable(map(_children, node.template_fragments())))
        elif tag == "iframe" and attributes.get("srcdoc"):
            # A page within the page.
            return [self._root(attributes["srcdoc"])], style
        elif tag in _FALLBACKS:
            has_source = attributes.get("src") or attributes.get("data")
            is_embedded = bool(tag in ("iframe", "frame", "embed", "object") and has_source)
            self._embedded += is_embedded and style.shown
            # Their content is not shown, except that of an object without a source.
            if tag != "object" or is_embedded:
                style = replace(style, hidden=True)
        return inner, style

    def _break(self, tag: str, style: _Style) -> None:
        """End the line before and after an element that has lines of its own; blank lines are around a paragraph."""
        lines = 0
        if _PARAGRAPHS.fullmatch(tag):
            lines = 2
        elif _LINES.fullmatch(tag):
            lines = 1
        if lines and not (style.removed or style.hidden):
            self._lines.end(lines, row=tag in _ROWS)

    def _text(self, data: str, style: _Style) -> None:
        """Add text by the style's rule for white space, or count it as hidden."""
        if style.shown:
            add = getattr(self._lines, style.space)
            add(f" {data} " if style.formula else data)
        elif not style.removed and not style.drawing:
            self._hidden += len(" ".join(data.split()))

    def _picture(self, attributes: dict[str, str | None], style: _Style) -> None:
        """Add a picture's description, or count the picture if it lacks one."""
        description = attributes.get("alt")
        if description:
            self._text(f"[image: {description}]", style)
        # A picture with an empty description, or of one pixel, has no meaning.
        elif description is None and not {attributes.get("width"), attributes.get("height")} & {"0", "1"}:
            self._pictures += style.shown

    def _input(self, attributes: dict[str, str | None], style: _Style) -> None:
        """Add what a field of a form shows."""
        kind = (attributes.get("type") or "text").lower()
        if kind in ("checkbox", "radio"):
            self._text("[x] " if "checked" in attributes else "[ ] ", style)
        elif kind == "image":
            self._picture(attributes, style)
        elif kind not in _NO_VALUE:
            self._text(attributes.get("value") or "", replace(style, hidden=style.hidden or kind == "password"))


def _children(node: LexborNode) -> list[LexborNode]:
    """The nodes directly within a node."""
    children = []
    child = node.child
    while child is not None:
        children.append(child)
        child = child.next
    return children


def _chosen(select: LexborNode) -> set[int]:
    """The ``mem_id`` of the selected options of a list; a drop-down without one shows its first enabled option."""
    options = select.css("option")
    chosen = [option for option in options if "selected" in option.attributes]
    is_drop_down = "multiple" not in select.attributes and (select.attributes.get("size") or "1") in ("0", "1")
    if is_drop_down and not chosen:
        enabled = [option for option in options if "disabled" not in option.attributes]
        chosen = enabled[:1]
    return {option.mem_id for option in chosen}


def _tex(formula: LexborNode) -> str:
    """A formula in TeX, if the page has it in TeX too; else ""."""
    for note in formula.css("annotation"):
        encoding = note.attributes.get("encoding") or ""
        if "tex" in encoding.lower():
            return note.text()
    return ""


def _number(number: int, one: str, more: str = "") -> str:
    """A number of things, with their name: ``one`` for a single thing, else ``more``, or ``one`` with an s."""
    if number == 1:
        return f"1 {one}"
    return f"{number:,} {more or one + 's'}"


# Style sheets: only what shows and hides text, or keeps its white space.


def _sheets(tree: LexborHTMLParser) -> dict[int, dict[str, tuple[tuple, str]]]:
    """What the page's own style sheets say of each node, by its ``mem_id``, in the form of :func:`_cascade`."""
    rules: list[tuple[list[Any], _Said]] = []
    for style in tree.css("style"):
        if _applies(style):
            rules += _rules(style.text())
    # Properties that matter to the text: most pages set sizes or white space, but to values that hide and keep nothing.
    # Any value of ``display`` matters, since it shows an element with the attribute ``hidden``.
    relevant = {"display"}
    for _, said in rules:
        relevant.update(name for name, value, _ in said if value in ("none", "kept", "lines"))
    found: dict[int, dict[str, tuple[tuple, str]]] = {}
    for order, (prelude, declarations) in enumerate(rules):
        said = [declaration for declaration in declarations if declaration[0] in relevant]
        if not said:
            continue
        for selector in _split(prelude):
            try:
                nodes = tree.css(tinycss2.serialize(selector))
            # It styles no element, as ``p::before``, is none that Lexbor knows, or is nested too deep.
            except (SelectolaxError, RecursionError):
                continue
            # As browsers choose: a more specific selector wins, then the later rule; False: in no style attribute.
            weight = (False, _specificity(selector), order)
            for node in nodes:
                _cascade(found.setdefault(node.mem_id, {}), said, weight)
    return found


def _applies(style: LexborNode) -> bool:
    """Whether a style sheet is CSS, and for screens."""
    kind = style.attributes.get("type") or "text/css"
    medium = style.attributes.get("media") or "all"
    return kind.lower() == "text/css" and _is_screen(medium)


_Said = list[tuple[str, str, bool]]
"""Declarations that matter to text: property, what its value says of text (:func:`_value`), whether it is important."""


def _rules(sheet: str) -> list[tuple[list[Any], _Said]]:
    """The selectors and declarations of a sheet's rules that hold on screens and matter to text."""
    found = []
    # The rules that are still to be read, the next one last; rules within a rule follow it.
    todo = tinycss2.parse_stylesheet(sheet, skip_comments=True, skip_whitespace=True)[::-1]
    while todo:
        rule = todo.pop()
        # Brackets within brackets can be too deep for tinycss2; a rule of so many says nothing to a browser.
        with suppress(RecursionError):
            if rule.type == "qualified-rule":
                said = _declared(rule.content)
                if said:
                    found.append((rule.prelude, said))
                todo += _nested(rule)[::-1]
            elif rule.type == "at-rule" and rule.content is not None and _applies_within(rule):
                todo += tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)[::-1]
    return found


def _nested(rule: Any) -> list[Any]:
    """The rules within a rule, as rules outside of it: their selectors include those of the outer rule."""
    outer = f":is({tinycss2.serialize(rule.prelude)})"
    inner = []
    for part in tinycss2.parse_blocks_contents(rule.content, skip_comments=True, skip_whitespace=True):
        if part.type != "qualified-rule":
            continue
        selectors = [tinycss2.serialize(selector) for selector in _split(part.prelude)]
        # Without a bound rules within rules could make selectors without end.
        n_insertions = sum(1 + selector.count("&") for selector in selectors)
        if len(outer) * n_insertions >= _LONG:
            continue
        # As browsers read them: & stands for the outer selector; a selector without it means descendants of the outer.
        whole = [selector.replace("&", outer) if "&" in selector else f"{outer} {selector}" for selector in selectors]
        prelude = tinycss2.parse_component_value_list(", ".join(whole))
        inner.append(tinycss2.ast.QualifiedRule(part.source_line, part.source_column, prelude, part.content))
    return inner


def _applies_within(rule: Any) -> bool:
    """Whether the rules in an at-rule apply: in @media if the query is true; in @layer and @supports unless negated."""
    asked = tinycss2.serialize(rule.prelude)
    if rule.lower_at_keyword == "media":
        return _is_screen(asked)
    return rule.lower_at_keyword in ("layer", "supports") and not asked.strip().lower().startswith("not")


def _is_screen(queries: str) -> bool:
    """Whether one of the media queries is true of a desktop's browser.

    A condition on another feature than the width, as on the colour scheme, counts as false.
    """
    for query in queries.split(","):
        conditions = re.split(r"\s+and\s+", query.strip().lower())
        if all(map(_holds, conditions)):
            return True
    return False


def _holds(condition: str) -> bool:
    """Whether a condition of a media query is true of a screen with a window of :data:`_WIDTH` pixels; so is ""."""
    width = _WIDTH_AS.fullmatch(condition)
    if width is None:
        return re.fullmatch("(only )?(all|screen)|", condition) is not None
    pixels = float(width[2]) * (1 if width[3] == "px" else 16)  # em and rem: of the usual font size, 16 pixels
    is_least = width[1].startswith("min") or ">" in width[1]
    return pixels <= _WIDTH if is_least else pixels >= _WIDTH


def _declared(content: str | list[Any]) -> _Said:
    """Parse declarations, given as text or as tokens, and return those that matter to text."""
    said = []
    for part in tinycss2.parse_blocks_contents(content, skip_comments=True, skip_whitespace=True):
        if part.type != "declaration":
            continue
        name = part.lower_name
        tokens = [token for token in part.value if token.type not in ("whitespace", "comment")]
        if name == "font":
            name, tokens = _font_size(tokens)
        value = _value(name, tokens)
        if value:
            said.append((name.removesuffix("-collapse"), value, part.important))
    return said


def _value(name: str, tokens: list[Any]) -> str:
    """What a property's value, as tokens, says of text; "" if nothing.

    That is "none" or "shown"; for a size also "inherit" (as the parent has it); for white space the name of a method
    of :class:`_Lines`. A value of several tokens says nothing, except that of ``display``, as in ``inline flex``.
    """
    if len(tokens) != 1:
        return "shown" if name == "display" and tokens else ""
    (token,) = tokens
    word = token.lower_value if token.type == "ident" else ""
    if name == "display":
        if word == "none":
            return "none"
        # ``revert`` and ``revert-layer`` leave it to other style sheets.
        return "shown" if word and not word.startswith("revert") else ""
    if token.type in ("number", "percentage", "dimension"):
        if name == "opacity":
            return "none" if token.value <= 0 else "shown"
        if name == "font-size":
            if token.value == 0:
                return "none"
            is_relative = token.type == "percentage" or (token.type == "dimension" and token.lower_unit in _RELATIVE)
            return "inherit" if is_relative else "shown"
    if name == "font-size":
        if word in ("inherit", "larger", "smaller", "unset"):
            return "inherit"
        return "shown" if word else ""
    return _KEYWORDS.get(name.removesuffix("-collapse"), {}).get(word, "")


def _font_size(tokens: list[Any]) -> tuple[str, list[Any]]:
    """Convert a declaration of ``font`` to one of ``font-size``: the name, and the token of its size, in a list.

    Without a size in figures, the first token is taken: a keyword, as ``inherit``.
    """
    # Angles belong to a slant, and numbers other than 0 to a weight or to the height of a line.
    lengths = [token for token in tokens if token.type == "dimension" and token.lower_unit not in _ANGLES]
    others = [token for token in tokens if token.type == "percentage" or (token.type == "number" and token.value == 0)]
    # The size comes first: the height of a line may follow it, after a slash.
    sizes = sorted((*lengths, *others), key=tokens.index)
    return "font-size", sizes[:1] or tokens[:1]


def _cascade(found: dict[str, tuple[tuple, str]], said: _Said, weight: tuple) -> None:
    """Put declarations of a ``weight`` into ``found``, unless it has a heavier one of the property.

    ``found`` has, by property, the weight and what the value says. Weights compare as tuples; important declarations
    are heavier than all others.
    """
    for name, value, important in said:
        if name not in found or (important, *weight) >= found[name][0]:
            found[name] = (important, *weight), value


def _split(prelude: Iterable[Any]) -> list[list[Any]]:
    """Split a list of selectors at its commas, into the tokens of each."""
    selectors: list[list[Any]] = [[]]
    for token in prelude:
        if token == ",":
            selectors.append([])
        else:
            selectors[-1].append(token)
    return selectors


def _specificity(selector: Iterable[Any]) -> tuple[int, int, int]:
    """The specificity of a selector: its numbers of ids, classes and types; what is in brackets counts as one class."""
    ids = classes = types = 0
    before = None
    for token in selector:
        if token.type == "hash":
            ids += 1
        # [attribute], :function(...), .class or :pseudo-class; any other name is an element's.
        elif token.type in ("[] block", "function") or (token.type == "ident" and before in (".", ":")):
            classes += 1
        elif token.type == "ident":
            types += 1
        before = token
    return ids, classes, types

"""What is read of a document, what is left out with a note, and what is refused."""

import io
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from commands import ENVIRONMENT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pypdf import PageObject, PdfWriter
from pypdf.generic import ArrayObject, DecodedStreamObject, DictionaryObject, NameObject, NumberObject, TextStringObject

import utaca
from utaca.app import documents
from utaca.app.documents import of_html

Read = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads bytes as a file of a name: the text, and the notes."""

    def reading(content: bytes, name: str = "a.html") -> tuple[str, list[str]]:
        notes: list[str] = []
        (tmp_path / name).write_bytes(content)
        text = documents.read([tmp_path / name], notes.append)
        prefix = f"document {tmp_path / name}: "
        assert all(note.startswith(prefix) and "\n" not in note for note in notes)
        return text, [note.removeprefix(prefix) for note in notes]

    return reading


# Web pages


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        ("<p hidden>no</p>", ""),
        ("<p hidden=until-found>no</p>", ""),
        ("<p hidden>no<p>yes", "yes"),
        ("<div hidden><div>no</div><p>no</p></div>yes", "yes"),
        ("<br hidden>yes<input hidden value=no>", "yes"),
        ("<input type=hidden value=no><input type=password value=no>", ""),
        ("<p style='display:none'>no", ""),
        ("<p style='color:red; DISPLAY : none !important'>no", ""),
        ("<p style='/* */ d\\69splay:none'>no", ""),
        ("<p style='display:none'>no<b style='display:inline; visibility:visible'>no", ""),
        ("<p hidden style='display:block'>yes", "yes"),
        ("<p style='display:none; display:block'>yes", "yes"),
        ("<p style='visibility:hidden'>no<b style='visibility:visible'>yes</b>no", "yes"),
        ("<p style='opacity:0'>no", ""),
        ("<p style='opacity:0.5'>yes", "yes"),
        ("<p style='font-size:0px'>no<b style='font-size:12px'>yes</b><b style='font-size:2em'>no", "yes"),
        ("<p style='font:0/0 a'>no<b style='font:oblique 0deg 12px/0 a'>yes</b><b style='font:inherit'>no", "yes"),
        ("<style>i{font:italic 0px a} q{font:bold large a}</style><i>no</i><q>yes", "yes"),
        ("<style>" + ".a{" * 3000 + "</style>yes", "yes"),
        ("<style>" + ":is(" * 900 + "p" + ")" * 900 + "{display:none} q{display:none}</style>yes<q>no", "yes"),
        ("<style>@media " + "(" * 3000 + ")" * 3000 + "{p{display:none}}</style>yes", "yes"),
        ("<p style='content-visibility:hidden'>no", ""),
        ("<dialog>no</dialog><dialog open>yes</dialog><div popover>no</div>", "yes"),
        ("<details><summary>yes</summary>yes</details>", "yes\nyes"),
        ("<video>no</video><audio>no</audio><canvas>no</canvas><object data=a>no</object>", ""),
        ("<object>yes</object>", "yes"),
        ("<noscript>no</noscript><template>no<template>no</template>no</template>", ""),
        ("<p>yes<noscript><p>no</p></noscript></p>", "yes"),
        (
            "<style>.x{color:red; .y, &.z{display:none} & q{display:none}}</style><p class=x>yes<b class=y>no</b><q>no",
            "yes",
        ),
        ("<style>" + "a,&b{" * 5000 + "p{display:none}</style>yes", "yes"),
        ("<style>a{" + "&" * 50_000 + "{display:none}}</style>yes", "yes"),
        ("<style>.x{&.z{display:none}}</style><p class='x z'>no<p class=x>yes", "yes"),
        ("<datalist><option>no</datalist><script>no</script><style>no</style>", ""),
        ("<p aria-hidden=true>yes", "yes"),
        ("<svg><title>no</title><svg><text>yes</text></svg><defs><text>no</text></defs>no</svg>", "yes"),
        ("<style>.x{display:none}</style><p class=x>no", ""),
        ("<style>#a .x, q{display:none}</style><div id=a><p class='y x'>no</p></div><p class=x>yes", "yes"),
        ("<style>.x{display:none} p.x{display:block}</style><p class=x>yes<b class=x>no", "yes"),
        ("<style>p.x{display:block} .x{display:none}</style><p class=x>yes", "yes"),
        ("<style>.x{display:none!important}</style><p class=x style='display:block'>no", ""),
        ("<style>@media print{p{display:none}} @media screen{b{display:none}}</style><p>yes<b>no", "yes"),
        ("<style>p::before,p:hover{display:none} @font-face{} }} p{color:red</style><p>yes", "yes"),
        ("<style>.x{display:none} @media (min-width: 48em){.x{display:block}}</style><p class=x>yes", "yes"),
        ("<style>@media only screen and (max-width:600px), print{p{display:none}}</style><p>yes", "yes"),
        ("<style>@media (width<=80rem){@layer a{@supports (a:b){q{display:none}}}}</style><q>no", ""),
        ("<style>@media (prefers-color-scheme:dark){p{display:none}}</style><p>yes", "yes"),
        ("<style media=print>p{display:none}</style><noscript><style>p{display:none}</style></noscript><p>yes", "yes"),
    ],
)
def test_what_a_page_hides_is_not_read(hidden: str, shown: str) -> None:
    assert of_html(f"<body><p>The fee is 40 euros.</p><section>{hidden}</section>") == (
        "The fee is 40 euros." + (f"\n\n{shown}" if shown else "")
    )


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>Listing:</p><pre>def f(x):\n    if x:\n        return 1\n    return 2</pre>", None),
        ("<pre>\n  one\n\n\n\ttwo  </pre>", "  one\n\n\n\ttwo"),
        ("<pre>a <b>  b</b><br>  c\r\n  <i>d</i></pre>", "a   b\n  c\n  d"),
        ("<p>a</p><div style='white-space: pre-wrap'>b\n  c</div>", "a\n\nb\n  c"),
        ("<style>code{white-space:pre}</style><code>b\n  c</code>", "b\n  c"),
        ("<div style='white-space: pre-line'>b\n   c    d</div>", "b\nc d"),
        ("<pre style='white-space:normal'>b\n  c</pre>", "b c"),
        ("<ul><li>a<pre>b\n  c</pre></ul>", "a\n\nb\n  c"),
        ("<table><tr><td>a<td><pre>b\n  c</pre></table>", "| a | b\n  c"),
        ("a<textarea>\nb\n  c</textarea>", "a\nb\n  c"),
        ("<xmp>a\n  <b></xmp>", "a\n  <b>"),
    ],
)
def test_white_space_that_a_page_keeps_is_kept(page: str, text: str | None, read: Read) -> None:
    text = text or "Listing:\n\ndef f(x):\n    if x:\n        return 1\n    return 2"
    assert of_html(page) == text
    assert read(page.encode())[0] == text


@pytest.mark.parametrize("line", ["\n", "\r\n", "\r"])
def test_every_line_of_a_text_ends_in_lf(line: str, read: Read) -> None:
    assert read(f"a{line}{line}b{line}".encode(), "a.txt")[0] == "a\n\nb"


def test_text_keeps_the_indentation_of_its_first_line(read: Read) -> None:
    assert read(b"\n \n  if x:\n    y\n\n", "a.py")[0] == "  if x:\n    y"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (
            "<table><tr><td><p>a</p></td><td><div>b</div><td hidden>c</tr><tr><td><td>d</tr></table>e",
            "| a | b\n| | d\n\ne",
        ),
        ("<table><tr><td hidden>a<td>b<tr><td>c</table>", "| b\n| c"),
        ("<div>a</div><div>b</div><p>c</p><p>d<br><br><br>e", "a\nb\n\nc\n\nd\n\ne"),
        ("a<img alt='A map'><img alt=''>b", "a[image: A map]b"),
        (
            "<input value=Ada><input type=submit value=Send><label><input type=checkbox checked>Yes</label>",
            "AdaSend[x] Yes",
        ),
        (
            "<input type=radio>No<select><optgroup label=Europe><option>a<option selected>b</select>",
            "[ ] No\nEurope\n[ ] a\n[x] b",
        ),
        ("<select><option>a<option label=c>b</select>", "[x] a\n[ ] c"),
        ("<select multiple><option>a</select>", "[ ] a"),
        ("<iframe srcdoc='<p>in &lt;b&gt;it</b>'>no</iframe>", "in it"),
        ("<div><template shadowrootmode=open><p>a</p></template></div>", "a"),
        ("<math alttext='x^2'><msup><mi>x</mi><mn>2</mn></msup></math>", "x^2"),
        (
            "<math><semantics><mi>x</mi><annotation encoding='application/x-tex'>x_1</annotation></semantics></math>",
            "x_1",
        ),
        ("10 <math><mn>1</mn><mo>/</mo><mn>2</mn></math>", "10 1 / 2"),
        ("<b>" * 20_000 + "a", "a"),
    ],
)
def test_what_a_page_shows_is_read(page: str, text: str) -> None:
    assert of_html(page) == text


@pytest.mark.parametrize(
    ("page", "note"),
    [
        ("<p>a<p hidden>four", "4 characters of hidden text left out."),
        ("<p>a<iframe src=b></iframe><embed src=c>", "2 embedded pages or objects not read."),
        ("<p>a<img src=b><img alt='' src=c><img width=1 height=1>", "1 picture without a description not read."),
        ("<p>a<math><mi>x</mi></math>", "1 formula read without layout."),
        (
            "<p>a<script>make()</script>",
            "text made by scripts not read (if you need it, print the page to PDF in a browser).",
        ),
        ("<script type=application/ld+json>{}</script><p>a", None),
        ("<p>a" + "b" * 200 + "<script>make()</script>", None),
        ("<meta http-equiv=Refresh content='0; URL=b.html'><p>a", "the page that it sends browsers on to not read."),
        ("<p>a<noscript>now</noscript>", "3 characters of hidden text left out."),
    ],
)
def test_what_is_left_out_of_a_page_is_noted(page: str, note: str | None, read: Read) -> None:
    assert read(page.encode())[1] == ([note] if note else [])


def test_a_note_goes_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a\nb.html").write_text("<p>a<p hidden>no")
    assert documents.read([tmp_path / "a\nb.html"]) == "a"
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("a\ufffdb.html: 2 characters of hidden text left out.\n")
    assert err.count("\n") == 1


# Encodings


def declaring(label: str) -> bytes:
    return f"<html><head><meta charset={label!r}></head><body>".encode()


@pytest.mark.parametrize(
    ("label", "content", "text"),
    [
        ("gb2312", "朱镕基".encode("gbk"), "朱镕基"),
        ("GBK", b"\x80 " + "㐀".encode("gb18030"), "€ 㐀"),
        ("x-gbk", "𠮷".encode("gb18030"), "𠮷"),
        ("shift_jis", "①髙﨑".encode("cp932"), "①髙﨑"),
        ("x-sjis", "①".encode("cp932"), "①"),
        ("windows-31j", "①".encode("cp932"), "①"),
        ("euc-jp", b"\xad\xa1 \xc5\xec", "① 東"),
        ("iso-2022-jp", b"\x1b$B-!El\x1b(B.", "①東."),
        ("euc-kr", "똠방각하".encode("cp949"), "똠방각하"),
        ("ks_c_5601-1987", "똠".encode("cp949"), "똠"),
        ("big5-hkscs", "嘅".encode("big5hkscs"), "嘅"),
        ("big5", "碁銹裏".encode("cp950"), "碁銹裏"),
        ("iso-8859-1", b"\x93a\x94\x80", "“a”€"),
        ("windows-1252", b"a\x81b", "a\x81b"),
        ("iso-8859-9", b"\x93\xfd\x94", "“ı”"),
        ("iso-8859-11", b"\xa1\x85", "ก…"),
        ("tis-620", b"\xa1\xdb\x81", "ก\ufffd\x81"),
        ("x-mac-roman", b"\x8a", "ä"),
        ("koi8-u", b"\xa4\xae", "єў"),
        ("iso-8859-8-i", b"\xe0", "א"),
        ("x-user-defined", b"\xe9", "é"),
        ("utf-16", "é".encode(), "é"),
        (" UTF-8 ", "é".encode(), "é"),
        ("unicode-1-1-utf-8", "é".encode(), "é"),
        *((label, "C:\\new +AGE- é".encode(), "C:\\new +AGE- é") for label in (
            "undefined", "unicode_escape", "raw_unicode_escape", "utf-7", "idna", "punycode", "base64", "rot13", "hex",
            "zlib", "mbcs", "none", "{{charset}}", "utf_8_sig", "cp037",
        )),
    ],
)  # fmt: skip
def test_a_pages_label_means_what_browsers_take_it_for(label: str, content: bytes, text: str, read: Read) -> None:
    said, notes = read(declaring(label) + b"x " + content)
    assert said == " ".join(f"x {text}".split())
    assert bool(notes) == ("\ufffd" in text)


@pytest.mark.parametrize(
    "declaration",
    [
        b"<META HTTP-EQUIV='Content-Type' CONTENT='text/html; CHARSET = \"windows-1252\"'>",
        b"<meta content='text/html;charset=windows-1252' http-equiv=content-type>",
        b"<meta charset=klingon><meta charset=cp1252>",
        b"<!-- <meta charset=utf-8> --><script>'<meta charset=utf-8>'</script><meta charset=windows-1252>",
        b"<title><meta charset=utf-8></title><meta name='charset=gbk'><meta charset=windows-1252>",
        b"<style>" + b" " * 5000 + b"</style><meta charset=windows-1252>",
        b"<!doctype html>" + b"<!-- " + b"-" * 3000 + b" --><meta charset=latin1>",
    ],
)
def test_a_declaration_is_one_as_in_a_browser(declaration: bytes, read: Read) -> None:
    assert read(declaration + b"<body>a \x80")[0] == "a €"


def test_without_a_known_declaration_a_page_is_in_utf_8(read: Read) -> None:
    for page in (
        b"<!-- <meta charset=cp1252> -->",
        b"<meta charset=klingon>",
        b'<script>"<meta charset=cp1252>"</script>',
    ):
        assert read(page + "é".encode())[0] == "é"
        with pytest.raises(utaca.UserError, match=r"is neither a PDF nor text in UTF-8; save it as UTF-8 text"):
            read(page + b"a \xe9")
    assert read(b"<?xml version='1.0' encoding='windows-1252'?><html><body>\x80")[0] == "€"
    with pytest.raises(utaca.UserError, match="declares the encoding UTF-8 but is not in that encoding"):
        read(declaring("utf-8") + "жизнь и судьба".encode("cp1251"))
    with pytest.raises(utaca.UserError, match="declares an encoding that browsers do not support"):
        read(declaring("iso-2022-kr") + b"a")
    text, notes = read(declaring("utf-8") + "Grüße aus Köln".encode() + b" \xe9")
    assert text == "Grüße aus Köln \ufffd"
    assert notes == ["characters that are not in UTF-8 replaced: 1."]


# Kinds of files


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a", b"\xef\xbb\xbf<!DOCTYPE HTML><p>a", "a"),
        ("a", "<!-- c --><html><p>é".encode("utf-16"), "é"),
        ("a", b"<?xml version='1.0'?>\n<!DOCTYPE html><html><body><a id='x'/><script src='s'/>a</body></html>", "a"),
        ("a.xhtml", b"<html><head><title/></head><body><div/>a<br/>b<![CDATA[<c>]]></body></html>", "a\nb<c>"),
        ("a.xhtml", b"<body>" + b"<![CDATA[" * 50_000 + b"a", "a"),
        ("a.txt", b"<!--a-->" * 500 + b"<html>a", "a"),
        ("a.md", b"<h1 align=center>a</h1>", "<h1 align=center>a</h1>"),
        ("a.txt", b"From: me\n\nContent-Type: multipart/mixed is a header.", None),
    ],
)
def test_a_page_is_known_without_its_ending(name: str, content: bytes, text: str | None, read: Read) -> None:
    assert read(content, name)[0] == (text or content.decode())


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.rtf", rb"{\rtf1\ansi a}", "is an RTF file; save it as UTF-8 text, HTML or PDF"),
        ("a.ps", b"%!PS-Adobe-3.0\n(a) show", "is a PostScript file"),
        (
            "a.mht",
            b"From: <Saved>\r\nMIME-Version: 1.0\r\nContent-Type: multipart/related;\r\n b=1\r\n\r\na",
            "a web archive",
        ),
        ("a.eml", b"Subject: a\nContent-Transfer-Encoding: base64\n\nSGVsbG8=\n", "a web archive or a mail"),
        ("a.eml", b"content-transfer-encoding: Quoted-Printable\n\ncaf=C3=A9\n", "a web archive or a mail"),
        ("a.txt", "\u65e5\u672c".encode("iso2022_jp"), "is text in ISO-2022-JP; save it as UTF-8"),
        ("a.html", b"<script>make()</script>", "has no text (text made by scripts not read"),
        ("a.html", b"<body hidden>text", "has no text (4 characters of hidden text left out)"),
        ("a.html", b"<html>\0", "is a binary file"),
    ],
)
def test_what_has_no_text_to_read_is_refused(name: str, content: bytes, fault: str, read: Read) -> None:
    with pytest.raises(utaca.UserError) as refused:
        read(content, name)
    assert fault in str(refused.value)


def test_what_is_no_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for path, fault in (
        ("/dev/zero", "is a device"),
        ("", "has an empty name"),
        ("a\0b", "is not a valid file name"),
    ):
        with pytest.raises(utaca.UserError, match=fault):
            documents.read([path])
    for stdin in (None, io.TextIOWrapper(io.BytesIO())):
        monkeypatch.setattr(sys, "stdin", stdin)
        if stdin:
            stdin.close()
        with pytest.raises(utaca.UserError, match="standard input is closed; pass a document to it"):
            documents.read(["-"])


# PDFs


def name(text: str) -> NameObject:
    return NameObject(f"/{text}")


def entries(**values: Any) -> DictionaryObject:
    """A dictionary of a PDF; texts that begin with a slash are names."""

    def of(value: Any) -> Any:
        if isinstance(value, list):
            return ArrayObject(map(of, value))
        if type(value) is str:
            return NameObject(value) if value.startswith("/") else TextStringObject(value)
        return NumberObject(value) if type(value) is int else value

    return DictionaryObject({name(key): of(value) for key, value in values.items()})


def stream(content: bytes, **values: Any) -> DecodedStreamObject:
    made = DecodedStreamObject()
    made.set_data(content)
    made.update(entries(**values))
    return made


def line(text: str) -> bytes:
    return f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()


SCAN = b"q 612 0 0 792 0 0 cm BI /W 1 /H 1 /CS /G /BPC 8 ID \x00 EI Q "


class Made(PdfWriter):
    """A PDF with a page for each content stream, and a font F1."""

    def __init__(self, *contents: bytes | str) -> None:
        super().__init__()
        for each in contents:
            page = self.add_blank_page(612, 792)
            font = entries(Type="/Font", Subtype="/Type1", BaseFont="/Helvetica")
            page[name("Resources")] = entries(Font=entries(F1=font))
            page[name("Contents")] = self._add_object(stream(each if isinstance(each, bytes) else line(each)))

    def note(self, **values: Any) -> Any:
        """An annotation of the first page."""
        page = self.pages[0]
        made = self._add_object(entries(Type="/Annot", Rect=[0, 0, 100, 20], **values))
        page[name("Annots")] = ArrayObject([*page.get("/Annots", ()), made])
        return made

    def field(self, **values: Any) -> Any:
        return self.note(Subtype="/Widget", **values)

    def form(self, fields: Iterable[Any], **values: Any) -> None:
        self.root_object[name("AcroForm")] = entries(Fields=list(fields), **values)

    def content(self) -> bytes:
        made = io.BytesIO()
        self.write(made)
        return made.getvalue()


OCR = "; if they are scans, run OCR on them first."


@pytest.mark.parametrize(
    ("contents", "note"),
    [
        (["Cover page", *[SCAN] * 9], "pages 2-10 of 10 without text" + OCR),
        (["Cover page", SCAN, "Words", SCAN], "pages 2, 4 of 4 without text" + OCR),
        (["Cover page", SCAN + line("Page 2")], "page 2 of 2 with pictures and hardly any text" + OCR),
        (["Cover page", SCAN + line("All words " * 20)], None),
        (
            ["Cover page", line("\\001\\002\\003")],
            "page 2 of 2 with fonts that have no character map; use OCR.",
        ),
    ],
)
def test_pages_that_are_not_read_are_noted(contents: list[Any], note: str | None, read: Read) -> None:
    text, notes = read(Made(*contents).content(), "a.pdf")
    assert text.startswith("Cover page")
    assert notes == ([note] if note else [])


GLYPHS = entries(Type="/Font", Subtype="/CIDFontType2", BaseFont="/X", CIDSystemInfo=entries(Ordering="Identity"))


@pytest.mark.parametrize(
    ("font", "shown"),
    [
        (
            entries(Type="/Font", Subtype="/Type0", BaseFont="/X", Encoding="/Identity-H", DescendantFonts=[GLYPHS]),
            "<00240025>",
        ),
        (entries(Type="/Font", Subtype="/Type3", Encoding=entries(Differences=[36, "/g1", "/g2"])), "<2425>"),
    ],
)
def test_fonts_that_do_not_name_their_letters_are_noted(font: DictionaryObject, shown: str, read: Read) -> None:
    made = Made(line("Plain") + f" BT /F2 12 Tf {shown} Tj ET".encode(), "Plain")
    made.pages[0]["/Resources"]["/Font"][name("F2")] = font
    text, notes = read(made.content(), "a.pdf")
    assert text.startswith("Plain")
    assert notes == ["page 1 of 2 with fonts that have no character map; use OCR."]


def test_the_values_of_a_form_are_read(read: Read) -> None:
    made = Made("The form")
    drawn = stream(line("as drawn"), Subtype="/Form", Resources=made.pages[0]["/Resources"])
    fields = [
        made.field(FT="/Tx", T="name", V="Ada Holm"),
        made.field(FT="/Tx", T="f1", TU="Birth place", V="Leeds\rYork"),
        made.field(FT="/Tx", T="long", V=made._add_object(stream(b"A long text"))),
        made.field(FT="/Tx", T="rich", RV="<body><p>Rich</p></body>"),
        made.field(FT="/Tx", T="drawn", AP=entries(N=made._add_object(drawn))),
        made.field(FT="/Tx", T="number", V=7),
        made.field(FT="/Tx", T="empty"),
        made.field(FT="/Btn", T="member", V="/Yes", AS="/Yes"),
        made.field(FT="/Btn", T="sick", AS="/Off"),
        made.field(FT="/Btn", T="press", Ff=1 << 16, MK=entries(CA="Send")),
        made.field(FT="/Ch", T="country", V="de", Opt=[["de", "Germany"], ["fr", "France"]]),
        made.field(FT="/Ch", T="languages", V=["en", "fr"]),
        made.field(FT="/Sig", T="signature", V=entries(Name="Ada")),
        made._add_object(entries(FT="/Tx", T="loose", V="on no page")),
    ]
    kids = [made.field(AS="/Off"), made.field(AS="/red")]
    radio = made._add_object(entries(FT="/Btn", T="colour", Ff=1 << 15, Kids=kids))
    child = made.field(FT="/Tx", T="age", V="41")
    parent = made._add_object(entries(T="person", Kids=[child]))
    for kid in kids:
        kid.get_object()[name("Parent")] = radio
    child.get_object()[name("Parent")] = parent
    made.form([*fields, radio, parent])
    text, notes = read(made.content(), "a.pdf")
    assert text.splitlines() == [
        "The form", "name: Ada Holm", "Birth place: Leeds", "York", "long: A long text", "rich: Rich",
        "drawn: as drawn", "number: 7", "member: Yes", "sick: Off", "Send", "country: Germany", "languages: en, fr",
        "signature: signed Ada", "colour: red", "person.age: 41", "", "loose: on no page",
    ]  # fmt: skip
    assert notes == []


def test_a_form_alone_is_a_document(read: Read) -> None:
    made = Made(SCAN)
    made.form([made.field(FT="/Tx", T="name", V="Ada Holm")])
    assert read(made.content(), "a.pdf") == ("name: Ada Holm", ["page 1 of 1 without text" + OCR])


def test_what_a_form_hides_or_has_elsewhere_is_noted(read: Read) -> None:
    made = Made("The form")
    secret = made.field(FT="/Tx", T="password", Ff=1 << 13, V="secret")
    made.form([secret, made.field(FT="/Tx", T="hidden", F=2, V="not shown")], XFA="x")
    made.note(Subtype="/FreeText", Contents="not shown", F=32)
    made.add_attachment("a\n.xlsx", b"x")
    text, (note,) = read(made.content(), "a.pdf")
    assert text == "The form"
    assert note == (
        "3 hidden fields or remarks left out; an XFA form: only its pages and fields were read; print it to PDF; "
        "attached files not read (a\ufffd.xlsx)."
    )


def test_remarks_on_pages_are_read(read: Read) -> None:
    made = Made("Page")
    drawn = stream(line("RECEIVED"), Subtype="/Form", Resources=made.pages[0]["/Resources"])
    made.note(Subtype="/FreeText", Contents="Typed on it")
    made.note(Subtype="/Text", Contents="Check this", T="Bo")
    made.note(Subtype="/Highlight", RC="<body><p>rich <b>text</b></p></body>")
    made.note(Subtype="/Stamp", AP=entries(N=made._add_object(drawn)))
    made.note(Subtype="/Link", Contents="no")
    made.note(Subtype="/FileAttachment", FS=entries(F="b.txt"))
    made.note(Subtype="/Text", F="damaged", Contents="no")
    assert read(made.content(), "a.pdf") == (
        "Page\nTyped on it\nComment by Bo: Check this\nComment: rich text\nRECEIVED",
        ["some fields or remarks that are damaged not read; attached files not read (b.txt)."],
    )


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, True),
        ({"OFF": True}, False),
        ({"BaseState": "/OFF"}, False),
        ({"BaseState": "/OFF", "ON": True}, True),
    ],
)
@pytest.mark.parametrize("membership", [False, True])
def test_layers_that_are_not_shown_are_not_read(
    settings: dict[str, Any], shown: bool, membership: bool, read: Read
) -> None:
    made = Made(b"BT /F1 9 Tf 72 720 Td (One) Tj /OC /L BDC 0 -20 Td (Draft) Tj EMC 0 -20 Td (Two) Tj ET /X Do")
    layer = made._add_object(entries(Type="/OCG", Name="L"))
    named = made._add_object(entries(Type="/OCMD", OCGs=[layer])) if membership else layer
    resources = made.pages[0]["/Resources"]
    drawn = stream(line("Form"), Subtype="/Form", Resources=entries(Font=resources["/Font"]), OC=named)
    resources[name("Properties")] = entries(L=named)
    resources[name("XObject")] = entries(X=made._add_object(drawn))
    first = entries(**{key: [layer] if value is True else value for key, value in settings.items()})
    made.root_object[name("OCProperties")] = entries(OCGs=[layer], D=first)
    text, notes = read(made.content(), "a.pdf")
    assert text.split() == (["One", "Draft", "Two", "Form"] if shown else ["One", "Two"])
    assert notes == ([] if shown else ["text of hidden layers left out."])


def test_a_damaged_page_does_not_keep_the_others(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    extract = PageObject.extract_text

    def damaged(page: PageObject, *args: Any, **options: Any) -> str:
        text = extract(page, *args, **options)
        if "bad" in text:
            raise ValueError("of\nlines")
        return text

    monkeypatch.setattr(PageObject, "extract_text", damaged)
    assert read(Made("good", "bad").content(), "a.pdf") == ("good", ["page 2 of 2 damaged and not read."])
    with pytest.raises(
        utaca.UserError, match=r"is a PDF that cannot be read \(ValueError: of lines\); export it as PDF again"
    ):
        read(Made("bad", "bad").content(), "a.pdf")


def test_what_a_damaged_file_lacks_is_noted(read: Read) -> None:
    made = Made("One", "Two")
    made.root_object["/Pages"][name("Count")] = NumberObject(5)
    made.pages[1][name("Contents")] = made._add_object(stream(b"/X Do " + line("Two")))
    made.pages[1]["/Resources"][name("XObject")] = entries(X=NumberObject(1))
    content = made.content()
    text, (note,) = read(content + b"99 0 obj << /An /update >> endobj", "a.pdf")
    assert text == "One\n\nTwo"
    assert "page 2 of 2 damaged and read in part" in note
    assert "3 of 5 pages missing in the file" in note
    assert "the end of the file is missing" in note


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-128", "AES-256"])
def test_a_pdf_without_a_password_is_read(algorithm: str, read: Read) -> None:
    for password in ("", "secret"):
        made = Made("The committee met.")
        made.encrypt(password, "owner", algorithm=algorithm)
        if password:
            with pytest.raises(utaca.UserError, match="is locked by a password; save it without a password"):
                read(made.content(), "a.pdf")
        else:
            assert read(made.content(), "a.pdf") == ("The committee met.", [])


def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    made = Made("The committee met.")
    made.encrypt("", "owner", algorithm="AES-256")
    (tmp_path / "a.pdf").write_bytes(made.content())
    (tmp_path / "a.html").write_text("<p>a")
    for package, file in (("cryptography", "a.pdf"), ("selectolax", "a.html")):
        code = f"import sys; sys.modules[{package!r}] = None\nfrom utaca.app.documents import read\nread([{file!r}])"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
        )
        assert f"pip install {package}" in done.stderr.splitlines()[-1]


# Anything at all

HTML = (
    b"<!DOCTYPE html><html><head><meta charset='shift_jis'><style>p.x,#y>b{display:none}@media screen{q{opacity:0}}"
    b"</style></head><body><p class=x hidden>a<b style='visibility:hidden'>c</b><pre>\n  d</pre><table><tr><td>e<svg>"
    b"<text>f</svg><select><option selected>g</select><iframe srcdoc='&lt;p>h'></iframe><template><i>j</template>"
    b"<math><mi>k</math>"
)
TOKENS = (
    b"<", b">", b"</p>", b"<svg>", b"<template>", b"<select>", b"<table>", b"<frameset>", b"<plaintext>", b"<!--",
    b"-->", b"<![CDATA[", b"]]>", b"\0", b"\xff\xfe", b"\x80", b"%PDF-1.7\n", b"endobj", b"stream", b"<<", b">>",
    b"0 R", b"-1", b"/", b"(", b"<style>", b"{", b"}", b"display:none", b"&#xd800;", b"\r", b"charset=", b"utf-7",
    b"<meta charset=iso-2022-jp>", b"\x1b$B", b"{\\rtf", b"content-type: multipart/",
)  # fmt: skip


def seeds() -> list[bytes]:
    made = Made("The committee met.", SCAN)
    made.form([made.field(FT="/Ch", T="name", V="a", Opt=[["a", "b"]])])
    made.note(Subtype="/FreeText", Contents="Typed")
    locked = Made("Locked")
    locked.encrypt("", "owner", algorithm="AES-256")
    text = "Grüße. \u65e5\u672c".encode()
    return [
        HTML,
        made.content(),
        locked.content(),
        text,
        "<html><p>é".encode("utf-16"),
        b"<?xml version='1.0'?><html><a/>",
    ]


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Bytes, or a whole document that was cut, and in which bytes and pieces of others were put."""
    content = bytearray(draw(st.one_of(st.binary(max_size=200), st.sampled_from(SEEDS))))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(content)))
        length = draw(st.sampled_from((0, 0, 1, 3, 40, len(content))))
        content[at : at + length] = draw(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=8)))
    return bytes(content)


SEEDS = seeds()


@given(content=contents(), ending=st.sampled_from((".txt", ".html", ".xhtml", ".pdf", "")))
@settings(
    max_examples=250, deadline=5000, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_anything_is_read_or_refused_in_a_sentence(content: bytes, ending: str, tmp_path: Path) -> None:
    notes: list[str] = []
    path = tmp_path / f"a{ending}"
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            assert documents.read([path], notes.append).strip()
        except utaca.UserError as refused:
            notes.append(str(refused))
    assert len(notes) <= 1
    assert all(note.startswith(f"document {path}") and "\n" not in note for note in notes)

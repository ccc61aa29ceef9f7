"""``utaca ask``: a question about documents, its answer token by token."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

import utaca
from utaca.app import documents
from utaca.app.choices import Choice, choose
from utaca.app.questions import is_understood, limit
from utaca.app.streams import tell
from utaca.decoding.loop import Batch
from utaca.decoding.options import Decoding
from utaca.errors import UserError
from utaca.memory.block_memory import BlockMemory
from utaca.memory.prefill import prefill, seconds_to_read
from utaca.memory.saved import SavedDocuments
from utaca.readers.load import Reader
from utaca.settings.budgets import Budget, share_of
from utaca.settings.schema import ADAPTIVE, FIXED
from utaca.trace import Generation, Token

SHADES = (None, 195, 153, 117, 75)
"""Backgrounds of the 256-colour palette by share of K_max, lightest first; all of them carry black text."""


def ask(
    name: str,
    files: Sequence[str],
    question: str,
    wanted: dict[str, Any],
    *,
    json_lines: bool,
    page: Path | None,
    saved: SavedDocuments | None,
) -> None:
    """Answer a question about files: write the answer to standard output, and notes about it to standard error.

    ``name`` is the reader's name, path or hub id; ``wanted`` has arguments of :func:`utaca.app.choices.choose`. With
    ``json_lines`` the answer is JSON, an object for each token and one of totals. If set, ``page`` gets the trace as
    HTML, and ``saved`` keeps the document. Raises :class:`UserError`.
    """
    from transformers.utils.logging import disable_progress_bar

    if page:
        _check_page(page)
    text = documents.read(files)
    disable_progress_bar()
    reader = utaca.load_reader(name)
    tokens = reader.document(text)
    choice = choose(reader, reader.settings.memory.layout.blocks(len(tokens)), **wanted)
    for note in (choice.note, _note_on(question, reader)):
        if note:
            tell(note)
    budget = choice.options["budget"]
    if saved is None or not saved.holds(reader, tokens, budget):
        tell(f"Reading {len(tokens):,} tokens takes {about(seconds_to_read(reader, tokens, budget))}.")
    started = time.perf_counter()
    memory, was_cached = remembered(reader, tokens, budget, saved)
    read_seconds = time.perf_counter() - started
    if was_cached:
        tell(f"Read before: {len(memory):,} tokens came from the cache in {read_seconds:.1f} s.")
    show = show_json if json_lines else shaded(sys.stdout, choice)
    batch = Batch()
    answer = batch.add(Decoding(memory, question, **choice.options))
    while batch:
        for _, token in batch.step():
            show(token)
    generation = answer.result()
    if json_lines:
        of_reading = {"document_tokens": len(memory), "read_seconds": read_seconds, "cached": was_cached}
        print(json.dumps(_totals(generation, choice, reader.settings.name, **of_reading)), flush=True)
    else:
        print(flush=True)
        tell(_in_words(generation, choice))
    if page:
        names = ", ".join("standard input" if file == documents.STDIN else Path(file).name for file in files)
        _save_page(page, page_of(names, question, text, reader, generation, choice))


def _note_on(question: str, reader: Reader) -> str:
    """A note if the reader does not understand every question: which it does, and whether this is one; else ""."""
    settings = reader.settings
    note = limit(settings)
    if is_understood(settings, question):
        return note
    return f"{note} Yours has another form: expect a wrong answer. 'utaca fetch' lists other readers."


def about(seconds: float) -> str:
    """An estimate of seconds in words, no more exact than it is."""
    if seconds < 1.5:
        return "about a second"
    if seconds < 90:
        # Two digits at most, the second of them 0 or 5 from 20 on.
        return f"about {round(seconds) if seconds < 20 else 5 * round(seconds / 5)} s"
    if seconds < 5400:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"


def remembered(
    reader: Reader, document: str | Tensor, budget: Budget, saved: SavedDocuments | None
) -> tuple[BlockMemory, bool]:
    """The memory of a document for answers under a ``budget``, and whether it is one of the ``saved`` documents.

    ``document`` is its text or token ids [N]. If it is not among them, it is read now, and saved unless ``saved`` is
    None.
    """
    if saved is None:
        return prefill(reader, document, budget=budget, description="reading"), False
    memory, _, was_cached = saved.read(reader, document, budget, description="reading")
    return memory, was_cached


def _save_page(page: Path, html: str) -> None:
    """Write the page of an answer to a file, and name the file to the user; raises :class:`UserError` on failure."""
    try:
        page.write_text(html, encoding="ascii")
    except OSError as error:
        raise UserError(f"{page} cannot be written ({error.strerror}); give another path with --save") from error
    tell(f"Token by token: {page}")


def _totals(
    generation: Generation, choice: Choice, reader: str, *, document_tokens: int, read_seconds: float, cached: bool
) -> dict[str, Any]:
    """The JSON object that follows those of the tokens: the answer's text, its settings and its sums."""
    return {
        "type": "answer",
        "text": generation.text,
        "finish": generation.finish,
        "reader": reader,
        "document_tokens": document_tokens,
        "tokens": len(generation.trace),
        "budget": choice.options["budget"],
        "policy": choice.policy,
        "trigger": str(choice.trigger),
        "mean_selected_tokens": round(generation.mean_selected_tokens, 2),
        "mean_attended_tokens": round(generation.mean_attended_tokens, 2),
        "rollbacks": generation.rollbacks,
        "decode_seconds": round(generation.seconds, 3),
        "read_seconds": round(read_seconds, 3),
        "cached": cached,
    }


def _check_page(page: Path) -> None:
    """Raise :class:`UserError` if the page of an answer cannot be made or written."""
    try:
        import utaca.reporting.traces  # noqa: F401
    except ImportError as error:
        raise UserError(f"--save needs the package {error.name}; run: pip install 'utaca[pipeline]'") from error
    folder = page.absolute().parent
    if page.is_dir():
        raise UserError(f"--save {page} is a folder; name a file in it, such as {page / 'trace.html'}")
    if not folder.is_dir():
        raise UserError(f"--save {page}: there is no folder {folder}; make the folder, or save the page elsewhere")


def page_of(names: str, question: str, text: str, reader: Reader, generation: Generation, choice: Choice) -> str:
    """Make the trace viewer's HTML page of an answer.

    ``names`` are the names of the document's files in one text, ``text`` is the document's text.
    """
    from utaca.generation.points import trace_rows
    from utaca.reporting.traces import answer_page, encoder

    budget = choice.options["budget"]
    is_fixed = choice.policy is None
    label = f"InfLLM K={choice.budget}" if is_fixed else f"K_max={choice.budget}, {choice.policy}, {choice.trigger}"
    encoded = encoder(reader.tokenizer)(text)
    answer = {
        "document": names,
        "point": label,
        "method": FIXED if is_fixed else ADAPTIVE,
        "base": "",
        "budget": budget,
        "share": share_of(choice.budget),
        "policy": choice.policy or "",
        "trigger": "" if is_fixed else str(choice.trigger),
        "drafts": choice.options["drafts"],
        "draft_budget": 0,
        "detector": "",
        "seed": None,
        "question": question,
        "n_context": len(encoded.offsets),
        "n_generated": len(generation.trace),
        "selected": generation.mean_selected_tokens,
        "rollbacks": generation.rollbacks,
        "finish": generation.finish,
    }
    about = f"Reader {reader.settings.name}."
    steps = list(trace_rows(names, generation))
    return answer_page(names, about, text, answer, steps, encoded, reader.settings.memory)


def show_json(token: Token) -> None:
    """Write a token to standard output as a line of JSON."""
    shown = {
        "type": "token",
        "text": token.text,
        "id": token.token,
        "k": token.k,
        "attended": round(token.attended, 1),
        "margin": round(token.margin, 4),
        "logprob": round(token.logprob, 4),
        "p": None if token.gdm is None else [round(p, 4) for p in token.gdm],
        "rejected": token.tentative and {"id": token.tentative.token, "k": token.tentative.k},
    }
    print(json.dumps(shown), flush=True)


def colours(out: TextIO) -> bool:
    """Whether to write colours: to a terminal that has them, unless the user asked for none (https://no-color.org)."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb")


def shaded(out: TextIO, choice: Choice) -> Callable[[Token], None]:
    """A function that writes a token's text to ``out``.

    The text is shaded by K / K_max if the budget is adaptive and ``out`` has colours; a legend is then shown at once.
    """
    most = choice.options["budget"]
    coloured = choice.policy is not None and colours(out)
    if coloured:
        tell(legend(most))

    def show(token: Token) -> None:
        text = printable(token.text)
        out.write(shade(text, token, most) if coloured else text)
        out.flush()

    return show


def printable(text: str) -> str:
    """A text without control codes, which an answer must not send to a terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", text)


def shade(text: str, token: Token, most: int) -> str:
    """A token's text with the terminal's codes for its budget of at most ``most`` blocks.

    It is underlined if the token was rolled back and decoded again.
    """
    step = (len(SHADES) * (token.k - 1)) // most
    background = SHADES[min(len(SHADES) - 1, step)]
    # Codes of ANSI terminals: 38;5;16 is black text, 48;5;N a background of the palette, 4 underlined, 0 plain again.
    codes = []
    if background:
        codes.append(f"38;5;16;48;5;{background}")
    if token.rolled_back:
        codes.append("4")
    if not codes or not text:
        return text
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m"


def legend(most: int) -> str:
    """A line that explains the shades, for budgets of at most ``most`` blocks."""
    steps = "".join(f"\x1b[38;5;16;48;5;{colour}m   \x1b[0m" for colour in SHADES if colour)
    return f"Budget: 1 block {steps} {most} blocks; \x1b[4munderlined\x1b[0m: rolled back and decoded again"


def _in_words(generation: Generation, choice: Choice) -> str:
    """A sentence for the user on how an answer was decoded: tokens, seconds, budget, rollbacks."""
    count = len(generation.trace)
    size = generation.block_size
    fixed = "" if choice.policy else ", a fixed budget"
    longest = choice.options["max_new_tokens"]
    cut = (
        f" The answer was cut off at its limit of {longest} tokens; allow more with --max-new-tokens."
        if generation.finish == "length"
        else ""
    )
    selected = (
        f"{generation.mean_selected_tokens:.0f} tokens of the document selected on average, at most "
        f"{choice.options['budget'] * size}{fixed}"
        if generation.mean_selected_tokens
        else "the whole document fits into the reader's window, so none of it was selected"
    )
    return f"{count} tokens in {generation.seconds:.1f} s; {selected}; {generation.rollbacks} rolled back.{cut}"

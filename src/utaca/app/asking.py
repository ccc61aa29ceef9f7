"""``utaca ask``: a question about documents, its answer token by token."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import utaca
from utaca.app import documents
from utaca.app.answering import Choice, choose
from utaca.app.cache import Cache, tell
from utaca.decoding.triggers import Agreement, Every
from utaca.errors import UserError
from utaca.memory.branch import BlockMemory
from utaca.memory.prefill import prefill
from utaca.readers.load import Reader
from utaca.trace import Generation, Token

SHADES = (None, 195, 153, 117, 75)
"""Backgrounds of the 256-colour palette by share of K_max, lightest first; all of them carry black text."""


@dataclass(frozen=True)
class Question:
    """What a user types: ``files`` are the documents, ``cache`` is where documents that were read are kept, if at all.

    ``choice`` are the arguments of :func:`utaca.app.answering.choose`; ``page`` is where the trace goes, if anywhere.
    """

    reader: str
    files: Sequence[str]
    text: str
    choice: dict[str, Any]
    json_lines: bool
    page: Path | None
    cache: Path | None
    cache_size: int


def ask(question: Question) -> None:
    """Answer on standard output; what else there is to say goes to standard error. Raises :class:`UserError`."""
    if question.page:
        _check_page(question.page)
    text = documents.read(question.files)
    reader = load(question.reader)
    choice = choose(reader, **question.choice)
    if choice.note:
        tell(choice.note)
    started = time.perf_counter()
    memory, cached = _read(reader, text, question)
    seconds = time.perf_counter() - started
    if cached:
        tell(f"Read before: {len(memory):,} tokens came from the cache in {seconds:.1f} s.")
    generation = Generation(memory.block_size)
    show = lines(sys.stdout) if question.json_lines else shaded(sys.stdout, choice)
    started = time.perf_counter()
    for token in show(collected(answered(memory, question.text, choice), generation)):
        del token
    generation.seconds = time.perf_counter() - started
    generation.finish = "eos" if generation.trace[-1].token in reader.stop_tokens else "length"
    totals = summary(reader, memory, generation, choice) | {"read_seconds": round(seconds, 3), "cached": cached}
    if question.json_lines:
        print(json.dumps(totals), flush=True)
    else:
        print(flush=True)
        tell(_in_words(generation, choice))
    if question.page:
        try:
            question.page.write_text(page(question, text, reader, generation, choice), encoding="ascii")
        except OSError as error:
            raise UserError(f"{question.page} cannot be written to ({error.strerror}); give another --save") from error
        tell(f"Token by token: {question.page}")


def load(name: str) -> Reader:
    """A reader by name, path or hub id, without a progress bar for its weights."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    return utaca.load_reader(name)


def _check_page(page: Path) -> None:
    try:
        import utaca.reporting.traces  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"--save needs {error.name}, of the extra 'pipeline'; run: pip install 'utaca[pipeline]'"
        ) from (error)
    if page.is_dir() or not page.absolute().parent.is_dir():
        raise UserError(f"--save {page} is no file in a folder that exists; name one, as trace.html")


def _read(reader: Reader, text: str, question: Question) -> tuple[BlockMemory, bool]:
    if question.cache is None:
        return prefill(reader, text, description="reading"), False
    return Cache(question.cache, question.cache_size, tell).read(reader, text)


def page(question: Question, text: str, reader: Reader, generation: Generation, choice: Choice) -> str:
    """The answer in the trace viewer."""
    from utaca.generation.points import trace_rows
    from utaca.reporting.traces import answer_page, encoder

    names = ", ".join(Path(file).name if file != documents.STDIN else "standard input" for file in question.files)
    most, kinds = choice.options["budget"], {Agreement: "agreement", Every: "no_detector"}
    if choice.policy is None:
        method, label = "infllm", f"InfLLM K={most}"
    else:
        method = kinds.get(type(choice.options["trigger"]), "utaca")
        label = f"K_max={most}, {choice.policy}, {choice.trigger}"
    encoded = encoder(reader.tokenizer)(text)
    answer = {
        "document": names,
        "point": label,
        "method": method,
        "budget": most,
        "policy": choice.policy or "",
        "question": question.text,
        "n_context": len(encoded.offsets),
        "n_generated": len(generation.trace),
        "selected": generation.mean_selected_tokens,
        "rollbacks": generation.rollbacks,
        "finish": generation.finish,
    }
    about = f"Reader {reader.settings.name}."
    return answer_page(names, about, text, answer, [*trace_rows(names, generation)], encoded, reader.settings.memory)


def answered(memory: BlockMemory, question: str, choice: Choice) -> Iterator[Token]:
    """The tokens of the answer as they are committed."""
    return utaca.stream(memory, question, **choice.options)


def collected(tokens: Iterable[Token], generation: Generation) -> Iterator[Token]:
    """The tokens as they come, which ``generation`` keeps."""
    for token in tokens:
        generation.trace.append(token)
        yield token


def line(token: Token) -> dict[str, Any]:
    """A token as an object of JSON."""
    return {
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


def lines(out: TextIO) -> Callable[[Iterable[Token]], Iterator[Token]]:
    """Shows tokens as JSON, a line each."""

    def show(tokens: Iterable[Token]) -> Iterator[Token]:
        for token in tokens:
            print(json.dumps(line(token)), file=out, flush=True)
            yield token

    return show


def colours(out: TextIO) -> bool:
    """Whether to write colours: to a terminal that has them, unless the user wants none (https://no-color.org)."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb")


def shaded(out: TextIO, choice: Choice) -> Callable[[Iterable[Token]], Iterator[Token]]:
    """Shows tokens as text; of an adaptive budget, on a terminal with colours, each shaded by its share of K_max."""
    most, coloured = choice.options["budget"], choice.policy is not None and colours(out)

    def show(tokens: Iterable[Token]) -> Iterator[Token]:
        if coloured:
            tell(legend(most))
        for token in tokens:
            # What the answer says must not steer the terminal.
            text = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in token.text)
            out.write(shade(text, token, most) if coloured else text)
            out.flush()
            yield token

    return show


def shade(text: str, token: Token, most: int) -> str:
    """A token's text with the terminal's codes for its budget; underlined if it was rolled back and decoded again."""
    background = SHADES[min(len(SHADES) - 1, (len(SHADES) * (token.k - 1)) // most)]
    codes = ([f"38;5;16;48;5;{background}"] if background else []) + (["4"] if token.rolled_back else [])
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes and text else text


def legend(most: int) -> str:
    """What shades mean."""
    steps = "".join(f"\x1b[38;5;16;48;5;{each}m   \x1b[0m" for each in SHADES if each)
    return f"Budget: 1 block {steps} {most} blocks; \x1b[4munderlined\x1b[0m: rolled back and decoded again"


def summary(reader: Reader, memory: BlockMemory, generation: Generation, choice: Choice) -> dict[str, Any]:
    """The totals of an answer, as an object of JSON."""
    return {
        "type": "answer",
        "text": generation.text,
        "finish": generation.finish,
        "reader": reader.settings.name,
        "document_tokens": len(memory),
        "tokens": len(generation.trace),
        "budget": choice.options["budget"],
        "policy": choice.policy,
        "trigger": choice.trigger,
        "mean_selected_tokens": round(generation.mean_selected_tokens, 2),
        "mean_attended_tokens": round(generation.mean_attended_tokens, 2),
        "rollbacks": generation.rollbacks,
        "decode_seconds": round(generation.seconds, 3),
    }


def _in_words(generation: Generation, choice: Choice) -> str:
    count, size = len(generation.trace), generation.block_size
    fixed = "" if choice.policy else ", a fixed budget"
    cut = "; cut at --max-new-tokens" if generation.finish == "length" else ""
    return (
        f"{count} tokens in {generation.seconds:.1f} s; {generation.mean_selected_tokens:.0f} tokens of the document "
        f"selected on average, at most {choice.options['budget'] * size}{fixed}; {generation.rollbacks} rolled back"
        f"{cut}."
    )

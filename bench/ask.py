"""Seconds from a document to the first answer and to the second: utaca, Hugging Face and llama.cpp on one GGUF file.

``python bench/ask.py FILE.gguf --prose TEXT`` reads the beginning of a text, asks two questions about it, and prints a
Markdown table, a row a program. Every program answers with the same number of tokens, greedily, and keeps what it read
for the second question. llama.cpp runs if the package llama-cpp-python is installed. Leave the machine to it meanwhile.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from report import markdown
from transformers import AutoModelForCausalLM, DynamicCache

import utaca
from utaca.app.choices import choose
from utaca.readers import gguf
from utaca.readers.load import Reader

LENGTHS = [2000, 5000, 16000, 32000]
QUESTIONS = ("What is this text about?", "Which person does the text name first?")
Answering = Callable[[str], None]
"""Answers a question about the document that was read."""
Reading = Callable[[torch.Tensor], Answering]
"""Reads the token ids [N] of a document."""


def by_utaca(reader: Reader, tokens: torch.Tensor, **options: Any) -> Answering:
    """Read a document into block memory, and answer from it."""
    memory = utaca.prefill(reader, tokens)
    return lambda asked: utaca.generate(memory, asked, **options)


def by_hugging_face(model: Any, reader: Reader, tokens: torch.Tensor, new: int) -> Answering:
    """Read a document by full attention, and answer from its keys and values."""
    cache = DynamicCache()
    with torch.inference_mode():
        model(tokens[None], past_key_values=cache, use_cache=True, logits_to_keep=1)

    def answer(asked: str) -> None:
        # A negative number says how many tokens go.
        if answered := cache.get_seq_length() - len(tokens):
            cache.crop(-answered)
        passed = reader.encode_question(asked)[None]
        with torch.inference_mode():
            for _ in range(new):
                out = model(passed, past_key_values=cache, use_cache=True, logits_to_keep=1)
                passed = out.logits[:, -1:].argmax(-1)

    return answer


def by_llama_cpp(model: Any, reader: Reader, tokens: torch.Tensor, new: int) -> Answering:
    """Read a document with llama.cpp, which keeps the tokens that two prompts have in common."""
    document = tokens.tolist()
    model.reset()
    model.eval(document)

    def answer(asked: str) -> None:
        prompt = document + reader.encode_question(asked).tolist()
        for _, _ in zip(range(new), model.generate(prompt, temp=0.0, reset=True), strict=False):
            pass

    return answer


def programs(path: Path, reader: Reader, new: int, longest: int) -> Iterator[tuple[str, Reading]]:
    """The programs by name, each with the function that reads a document."""
    fixed = dict(choose(reader, trigger="never", max_new_tokens=new).options)
    adaptive = choose(reader, max_new_tokens=new)
    yield f"utaca, InfLLM K={fixed['budget']}", partial(by_utaca, reader, **fixed | {"drafts": 0})
    yield "the same with drafts", partial(by_utaca, reader, **fixed)
    yield f"utaca, {adaptive.trigger} with drafts", partial(by_utaca, reader, **adaptive.options)
    model = AutoModelForCausalLM.from_pretrained(gguf.converted(path, False), dtype=torch.bfloat16).eval()
    yield "Hugging Face, bfloat16", partial(by_hugging_face, model, reader, new=new)
    if find_spec("llama_cpp") is None:
        print("llama.cpp is left out: llama-cpp-python is not installed; pip install llama-cpp-python\n", flush=True)
        return
    from llama_cpp import Llama

    threads = torch.get_num_threads()
    llama = Llama(str(path), n_ctx=longest + 1024, n_threads=threads, n_threads_batch=threads, verbose=False)
    yield "llama.cpp, the file as it is", partial(by_llama_cpp, llama, reader, new=new)


def timed(read: Reading, tokens: torch.Tensor) -> tuple[float, float]:
    """Seconds from the document to the first answer, and from the second question to its answer."""
    started = time.perf_counter()
    answer = read(tokens)
    answer(QUESTIONS[0])
    first = time.perf_counter()
    answer(QUESTIONS[1])
    return first - started, time.perf_counter() - first


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a GGUF file")
    parser.add_argument("--prose", type=Path, required=True, help="a text file; its beginning is the document")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[2000, 5000, 16000, 32000], help="tokens of documents"
    )
    parser.add_argument("--only", default="", help="only programs with this word in their row, as llama.cpp")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer (default: 64)")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    reader = utaca.load_reader(options.file)
    # Every answer is to have the same length.
    reader.stop_tokens = frozenset()
    document = reader.encode_document(options.prose.read_text(encoding="utf-8", errors="replace"))
    print(
        f"{options.file.name}, {torch.get_num_threads()} threads, answers of {options.tokens} tokens: first / second\n"
    )
    header = ("Program", *(f"{length:,} tokens" for length in options.lengths))
    print(markdown(header, []), flush=True)
    for name, read in programs(options.file, reader, options.tokens, max(options.lengths)):
        if options.only not in name:
            continue
        cells = [name]
        for length in options.lengths:
            first, second = timed(read, document[:length])
            cells.append(f"{first:.1f} / {second:.1f} s")
        # A row is printed once it is measured, so that an interrupted run leaves what it had.
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

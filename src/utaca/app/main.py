"""The command ``utaca``.

What a user types, and what comes back:

    $ utaca fetch qwen25_coder_1_5b
    $ utaca ask --reader qwen25_coder_1_5b --document report.pdf "Who chaired the meeting, and when?"
    Reading 18,204 tokens takes about 3 min.
    reading: 100%|██████████| 18204/18204 [03:10<00:00, 95.8token/s]
    The meeting was chaired by Ada Holm on 4 March.
    14 tokens in 6.2 s; 73 tokens of the document selected on average, at most 512; 3 rolled back.

Only the answer goes to standard output, so that it can be piped; it comes token by token, in a terminal shaded by each
token's budget. All other text goes to standard error. An error in the user's input gives one sentence and the exit
status 2 (docs/ask.md).

``utaca serve`` answers programs over the OpenAI protocol (:mod:`utaca.app.serving`). The other commands prepare readers
and runs; ``--help`` of each says more. Nothing heavy is imported before a command needs it.
"""

import io
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from utaca.app import completion, streams
from utaca.errors import UserError
from utaca.stages import STAGES

if TYPE_CHECKING:
    from utaca.memory.saved import SavedDocuments

TARGETS = {
    "results/tables": "the whole run: tables, figures and the report (the default)",
    **{stage.name: stage.makes for stage in STAGES},
    "tables": "the same as results/tables",
    "readers": "the model of the run, downloaded before other jobs need it",
    "results/{run}/tables/{table}.csv": "one table and the files that it needs",
}
"""What ``snakemake --cores all`` makes."""


# Ctrl-C during the import of Snakemake ends without a traceback. After the import, the Snakefile handles Ctrl-C.
_SNAKEMAKE = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); sys.argv[0] = 'snakemake'; "
    "from snakemake.cli import main; main()"
)


class Commands(TyperGroup):
    """The group of subcommands; a :class:`UserError` in a subcommand ends it with one sentence and exit status 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand; see the class."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            streams.tell(f"Error: {error}")
            raise typer.Exit(2) from None


class Command(TyperCommand):
    """A subcommand whose metavars say which arguments may be repeated, as in ``[FILE]... QUESTION``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts of the line "Usage:", without the brackets and dots that Typer puts around such a metavar.

        Typer shows a metavar ``[FILE]... QUESTION`` as ``{[FILE]... QUESTION}...``, or with square brackets if the
        argument is optional.
        """
        pieces = super().collect_usage_pieces(ctx)
        return [re.sub(r"[\[{](\[.*)[\]}]\.\.\.", r"\1", piece) for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the lists of arguments and options, without the Python types that Typer puts after arguments."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                name, meaning = record
                section = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections[section].append((re.sub(r" <\S+>$", "", name), _limits_in_words(meaning)))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _limits_in_words(meaning: str) -> str:
    """A help text with limits such as ``x>=1`` and ``0<=x<=9`` as words."""
    meaning = re.sub(r"\b(\d+)<=x<=(\d+)", r"\1 to \2", meaning)
    return re.sub(r"\bx>=(\d+)", r"at least \1", meaning)


_STYLE: dict[str, Any] = {
    "cls": Commands,
    "no_args_is_help": True,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(help="Ask questions about long documents, and run the UT-ACA experiments.", **_STYLE)
answers = typer.Typer(help="List, export or delete stored replies of LLM servers.", **_STYLE)
app.add_typer(answers, name="answers")


def _version(wanted: bool) -> None:
    """Print the version and end the command, if ``wanted``."""
    if wanted:
        from importlib.metadata import version

        print(f"utaca {version('utaca')}")
        raise typer.Exit


HOST = typer.Option(metavar="ADDRESS", help="Address to listen on. 0.0.0.0 lets other machines connect.")
PORT = typer.Option(metavar="PORT", help="Port to listen on. 0 takes any free port.", min=0, max=65535)


@app.callback()
def _utaca(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Characters that the encoding of standard output lacks are written as escapes.
        sys.stdout.reconfigure(errors="backslashreplace")


def _budget(text: str | None) -> int | str | None:
    """The budget that an option gives, None if it is left out; raises :class:`UserError` if it is none."""
    from utaca.settings.budgets import checked
    from utaca.settings.validation import as_number

    return None if text is None else checked(as_number(text), "--budget")


READER = typer.Option(
    metavar="NAME|PATH|HUB_ID",
    help="The model that answers: a name that 'utaca fetch' lists, a folder, a GGUF file, or a Hugging Face id.",
    autocompletion=completion.readers,
)
BUDGET = typer.Option(
    metavar="BLOCKS|SHARE",
    help="Maximum number of 16-token blocks of the document that a token of the answer reads (K_max), or a share of "
    "the document's blocks, such as 5%.  [default: set by the reader]",
    callback=_budget,
)
POLICY = typer.Option(
    metavar="POLICY",
    help="How the budget goes down after a token: sub.N (by N blocks) or set.N (to N blocks).  [default: sub.N with N "
    "= budget/4]",
)
TRIGGER = typer.Option(
    metavar="TRIGGER",
    help="When to generate a token again with the full budget: if a detector distrusts it (give its name or file), if "
    "its logit margin is small (margin, margin.X), if another budget changes it (agreement, agreement.N), for every "
    "N-th token (every.N), or never. See docs/ask.md.  [default: the reader's detector]",
    autocompletion=completion.triggers,
)
DRAFTS = typer.Option(
    metavar="NUMBER",
    help="Number of tokens to guess ahead and check in one pass. Guessing changes only the speed; 0 turns it off.",
    min=0,
)
Cache = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Folder of the document cache.  [default: ~/.cache/utaca/documents]"),
]
CacheSize = Annotated[str, typer.Option(metavar="SIZE", help="Maximum size of the document cache.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the document cache.")]
CACHE_SIZE = "8GiB"


@app.command(cls=Command)
def ask(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[FILE]... QUESTION", help="The question, in quotes. Files before it are added to --document."
        ),
    ],
    reader: Annotated[str, READER],
    document: Annotated[
        list[str],
        typer.Option(
            metavar="FILE", help="A text, Markdown, HTML or PDF file; - is standard input. Repeat for several files."
        ),
    ],
    budget: Annotated[str | None, BUDGET] = None,
    policy: Annotated[str | None, POLICY] = None,
    trigger: Annotated[str | None, TRIGGER] = None,
    drafts: Annotated[int, DRAFTS] = 7,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Maximum length of the answer, in tokens.  [default: set by the reader]"),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Write JSON: one line for each token, and a last line for the whole answer.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also save an HTML page that shows the answer token by token.")
    ] = None,
    cache: Cache = None,
    cache_size: CacheSize = CACHE_SIZE,
    no_cache: NoCache = False,
) -> None:
    """Ask a question about one or more documents."""
    from utaca.app import ask as asking

    *files, question = words
    if not question.strip():
        raise UserError("the question is empty; write one as the last argument, in quotes")
    choice = {
        "budget": budget,
        "policy": policy,
        "trigger": trigger,
        "max_new_tokens": max_new_tokens,
        "drafts": drafts,
    }
    saved = _saved(cache, cache_size, no_cache)
    asking.ask(reader, [*document, *files], question, choice, json_lines=json, page=save, saved=saved)


def _saved(cache: str | None, size: str, no_cache: bool) -> "SavedDocuments | None":
    """The documents that the options of the cache mean, None if it is not used."""
    from utaca.app.cache import opened

    return None if no_cache else opened(cache, size)


@app.command(cls=Command)
def score(
    reader: Annotated[str, READER],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUESTION ANSWER]", help="The question, and the answer to score, each in quotes."),
    ] = None,
    document: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A file of the document, as for utaca ask. Repeat for several files."),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="CSV file of answers to score, with the columns document, question and answer."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --csv: the file to write.  [default: standard output]")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="BLOCKS|SHARE",
            help="Number of blocks that each token reads, or a share of the document's blocks, such as 5%.  "
            "[default: set by the reader]",
            callback=_budget,
        ),
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(
            help="Name of an included detector, or path of a detector file.  [default: the reader's detector]"
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Write JSON: one line for each token, and a last line for the whole answer.")
    ] = False,
    cache: Cache = None,
    cache_size: CacheSize = CACHE_SIZE,
    no_cache: NoCache = False,
) -> None:
    """Mark the doubtful tokens of an existing answer."""
    from utaca.app import score as scoring

    wanted = scoring.Wanted(reader, budget, detector, json, _saved(cache, cache_size, no_cache))
    words = words or []
    if csv is not None:
        if words or document:
            raise UserError(
                "with --csv, documents, questions and answers are in the CSV file; leave out --document, the question "
                "and the answer"
            )
        scoring.score_rows(wanted, csv, out)
        return
    if out is not None:
        raise UserError("--out is only for --csv; without --csv, the scores go to standard output")
    if len(words) != 2 or not document:
        raise UserError("give --document FILE, a question and an answer (both in quotes), or give --csv FILE")
    scoring.score(wanted, document, *words)


@app.command(cls=Command)
def serve(
    reader: Annotated[str, READER],
    host: Annotated[str, HOST] = "127.0.0.1",
    port: Annotated[int, PORT] = 8000,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Maximum memory for documents after reading.  [default: half of the free memory]"
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder that keeps documents for the next start.  [default: none]"),
    ] = None,
    cache_size: CacheSize = CACHE_SIZE,
    parallel: Annotated[
        int, typer.Option(metavar="NUMBER", help="Maximum number of answers at the same time.", min=1)
    ] = 16,
    budget: Annotated[str | None, BUDGET] = None,
    policy: Annotated[str | None, POLICY] = None,
    trigger: Annotated[str | None, TRIGGER] = None,
    drafts: Annotated[int, DRAFTS] = 7,
    max_new_tokens: Annotated[
        int,
        typer.Option(metavar="TOKENS", help="Maximum length of an answer, in tokens, if a request sets none.", min=1),
    ] = 512,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name that clients use for the model.  [default: the name of the reader]"),
    ] = None,
) -> None:
    """Start an OpenAI-compatible server with a web page.

    If the environment variable UTACA_API_KEY is set, clients must send its value as their API key.
    """
    from utaca.app.cache import bytes_of, opened

    try:
        from utaca.app.serving import server
        from utaca.app.serving.protocol import ServerSettings
    except ModuleNotFoundError as error:
        raise UserError(f"utaca serve needs the package {error.name}; run: pip install 'utaca[serve]'") from None
    import utaca
    from utaca.listening import bound

    room = None if memory is None else bytes_of(memory)
    saved = None if cache is None else opened(cache, cache_size, "leave it out")
    key = os.environ.get("UTACA_API_KEY")
    if key == "":
        raise UserError("UTACA_API_KEY is set but empty; unset it to serve without a key, or set it to a key")
    server.check_key(key or "")
    # Before the weights are loaded, which may take minutes.
    sockets = bound(host, port)
    loaded = utaca.load_reader(reader)
    choice = {
        "budget": budget,
        "policy": policy,
        "trigger": trigger,
        "max_new_tokens": max_new_tokens,
        "drafts": drafts,
    }
    settings = ServerSettings(name or loaded.settings.name, host, port, room, parallel, saved, key or "", **choice)
    server.serve(loaded, settings, sockets)


@app.command(cls=Command)
def fetch(
    reader: Annotated[
        str | None,
        typer.Argument(
            metavar="READER",
            help="The reader to download.  [default: list the readers]",
            autocompletion=completion.readers,
        ),
    ] = None,
) -> None:
    """Download a reader (the model that answers), or list them."""
    from utaca.readers import files

    if reader is None:
        for name in files.listed():
            print(f"{name:20} {files.state(files.listed_settings(name))}")
    elif reader not in files.listed():
        raise UserError(files.unknown(reader))
    else:
        print(files.fetch(files.listed_settings(reader)))


@app.command("fetch-tasks", cls=Command)
def fetch_tasks(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Benchmarks to download.  [default: all]")
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Folder for the files. The setting tasks.path of a run names the same folder."
        ),
    ] = Path("data/benchmarks"),
) -> None:
    """Download the official files of the benchmarks."""
    from utaca.tasks.fetch import OFFICIAL
    from utaca.tasks.fetch import fetch as fetched

    n_faults = 0
    for file in fetched(names or OFFICIAL, folder):
        if file.fault:
            n_faults += 1
            streams.tell(f"Error: {file.fault}.")
        else:
            done = "fetched and checked" if file.now else "was already there"
            print(f"{file.path}: {done}; {file.size}, SHA-256 {file.sha256}", flush=True)
    if n_faults:
        raise typer.Exit(1)


@app.command(cls=Command)
def preflight(
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE|FILE]...", help="Short form of --config and --configfile."),
    ] = None,
    configfile: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Config file of the run, e.g. config/runs/paper.yaml.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Setting of the run, e.g. reader=tiny.")
    ] = None,
) -> None:
    """Check that a run has everything it needs.

    The exit status is 1 if something is missing.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from utaca.runs.preflight import report

    entries = list(config or [])
    files = list(configfile or [])
    for word in more or []:
        if "=" in word:
            entries.append(word)
        else:
            files.append(Path(word))
    raise typer.Exit(report(files, entries))


@app.command(
    cls=Command,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="\n".join(["\b", "Targets:", *(f"  {name:<20} {what}" for name, what in TARGETS.items())]),
)
def tables(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET|OPTION]...",
            help="Files or stages to make, and options of Snakemake.  [default: results/tables]",
            autocompletion=completion.targets,
        ),
    ] = None,
) -> None:
    """Run the experiment, and make its tables and report.

    Accepts all Snakemake options, e.g. utaca tables --configfile config/runs/paper.yaml
    """
    from utaca.runs import config_files as configfiles

    if not Path("Snakefile").is_file():
        raise UserError("utaca tables needs a checkout of utaca; change to the folder with the Snakefile")
    given = words or []
    sets_cores = any(re.match(r"-[cj]|--(cores|jobs|profile|workflow-profile)\b", word) for word in given)
    cores = [] if sets_cores else ["--cores", "all"]
    configfiles.check_words(given)
    target = [] if _names_target(given) else ["results/tables"]
    os.execv(sys.executable, [sys.executable, "-c", _SNAKEMAKE, *target, *cores, *given])


def _names_target(words: list[str]) -> bool:
    """Whether Snakemake's arguments name a target, and are not only options and their values."""
    if not words:
        return False
    from utaca.runs import command_line

    return bool(command_line.read(["snakemake", *words]).targets)


@app.command("check-endpoint", cls=Command)
def check_endpoint(
    endpoint: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of a file in config/endpoint.")
    ] = "gpt_oss_120b",
    base_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Address of the server, ending in /v1, instead of the endpoint's address."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the model, as the server lists it, instead of the endpoint's model."
        ),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="Name of the environment variable that holds the API key.")
    ] = None,
) -> None:
    """Check that an LLM server can be used as a judge."""
    from utaca.data_files import root
    from utaca.endpoints import check
    from utaca.runs.compose import compose
    from utaca.settings.checks import load

    # A different model must not share the endpoint's name. The model's own name will not do: it may have a slash, and
    # the name becomes part of a path.
    name = model and "asked"
    keys = {"base_url": base_url, "model": model, "api_key_env": api_key_env, "name": name}
    given = {key: value for key, value in keys.items() if value is not None}
    chosen = {"use": endpoint, **given}
    settings = load(compose({"judge": chosen}, root())).judge
    check(settings, f"endpoint {endpoint}")
    print(f"{settings.base_url or settings.name}: model {settings.model} answers.")


STORE = typer.Option(metavar="PLACE", help="Where the replies are stored: a file, or postgresql://USER@HOST/DATABASE.")
STORED = "results/answers.sqlite"


@answers.command("list", cls=Command)
def list_answers(store: Annotated[str, STORE] = STORED) -> None:
    """Count the stored replies by model, prompt version and answer format."""
    from utaca.endpoints import listing

    if store == STORED and listing.is_missing(store):
        print(f"no replies are stored yet: {store} does not exist; the first reply of an LLM server creates it")
        return
    with listing.opened(store) as answers:
        print(listing.listed(answers))


@answers.command("export", cls=Command)
def export_answers(
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only replies of this model.  [default: all models]")
    ] = None,
    store: Annotated[str, STORE] = STORED,
) -> None:
    """Write the replies and their requests as JSON lines."""
    from utaca.endpoints import listing

    with listing.opened(store) as answers:
        for line in listing.exported(answers, model):
            print(line)


@answers.command("prune", cls=Command)
def prune_answers(
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Only replies of this model.")] = None,
    before: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only replies from before this day, e.g. 2026-01-31.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the replies without deleting them.")] = False,
    store: Annotated[str, STORE] = STORED,
) -> None:
    """Delete replies. A run that needs them asks the server again."""
    from utaca.endpoints import listing

    if model is None and before is None:
        raise UserError("nothing says which answers to prune; give --model NAME, --before DATE, or both")
    moment = before and listing.moment(before)
    with listing.opened(store) as answers:
        number = answers.prune(model=model, before=moment, dry_run=dry_run)
        print(f"{number} answers {'would be ' if dry_run else ''}removed from {answers.place}")


@app.command("serve-rules", cls=Command)
def serve_rules(
    host: Annotated[str, HOST] = "127.0.0.1",
    port: Annotated[int, PORT] = 8000,
) -> None:
    """Start a server for the rule-based judge."""
    from utaca.judging.rules import endpoint as server

    server.run(host, port)


def run() -> None:
    """Run the command; the entry point of ``utaca`` and ``python -m utaca``."""
    try:
        streams.guard()
        try:
            app(prog_name="utaca")
        finally:
            streams.end()
    except UserError as error:
        # Of the streams, or of an option that ends the command before a subcommand: --help, --version.
        streams.tell(f"Error: {error}")
        sys.exit(2)

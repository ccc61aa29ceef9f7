"""The command ``utaca``.

What a user types, and what comes back:

    $ utaca fetch qwen25_coder_1_5b
    $ utaca ask --reader qwen25_coder_1_5b --document report.pdf "Who chaired the meeting, and when?"
    reading: 100%|██████████| 18204/18204 [03:10<00:00, 95.8token/s]
    The meeting was chaired by Ada Holm on 4 March.
    14 tokens in 6.2 s; 73 tokens of the document selected on average, at most 512; 3 rolled back.

Only the answer goes to standard output, so that it can be piped; it comes token by token, in a terminal shaded by each
token's budget. All other text goes to standard error. A mistake in the user's input gives one sentence and the exit
status 2 (docs/ask.md).

``utaca serve`` answers programs over the OpenAI protocol (:mod:`utaca.app.serving`). ``fetch``, ``preflight``,
``tables``, ``check-endpoint`` and ``answers`` belong to readers and runs; each says more with ``--help``. Nothing heavy
is imported before a command needs it.
"""

import io
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from utaca.app import streams
from utaca.errors import UserError
from utaca.stages import STAGES

TARGETS = {
    "results/tables": "the whole run: tables, figures and the report; the default",
    **{stage.name: stage.makes for stage in STAGES},
    "tables": "as results/tables",
    "readers": "the run's reader, fetched to this machine before jobs need it",
    "results/{run}/tables/{table}.csv": "one table, and what it needs",
}
"""What ``snakemake --cores all`` makes."""


# Ctrl-C while Snakemake is imported ends without a traceback; the Snakefile sees to a later one.
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


_STYLE: dict[str, Any] = {
    "cls": Commands,
    "no_args_is_help": True,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(help="Ask long documents under adaptive budgets (UT-ACA); run its experiments.", **_STYLE)
answers = typer.Typer(help="List, export and prune what endpoints answered.", **_STYLE)
app.add_typer(answers, name="answers")


def _version(wanted: bool) -> None:
    """Print the version and end the command, if ``wanted``."""
    if wanted:
        from importlib.metadata import version

        print(f"utaca {version('utaca')}")
        raise typer.Exit


HOST = typer.Option(help="Address to listen on; 0.0.0.0: all of them.")


@app.callback()
def _utaca(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Characters that the encoding of standard output lacks are written as escapes.
        sys.stdout.reconfigure(errors="backslashreplace")


READER = typer.Option(
    metavar="NAME|PATH|HUB_ID", help="The model: a name that 'utaca fetch' lists, a folder, a GGUF file, a hub id."
)
BUDGET = typer.Option(help="Blocks that a token retrieves at most, K_max.  [default: the reader's]", min=1)
POLICY = typer.Option(help="How the budget shrinks: sub.N or set.N.  [default: sub.(budget/4)]")
TRIGGER = typer.Option(
    help="What expands the budget: a shipped detector or a detector's file, margin, agreement, every.N, never.  "
    "[default: the reader's detector]"
)
DRAFTS = typer.Option(help="Tokens that are guessed at once and verified in one pass; 0: none.", min=0)
CACHE = typer.Option(metavar="DIR", help="Where documents are kept.  [default: ~/.cache/utaca/documents]")
CACHE_SIZE = typer.Option(metavar="SIZE", help="The most that they take.")
NO_CACHE = typer.Option("--no-cache", help="Neither keep the document nor look for it.")


@app.command()
def ask(
    words: Annotated[
        list[str], typer.Argument(metavar="[FILE]... QUESTION", help="The question, after further files.")
    ],
    reader: Annotated[str, READER],
    document: Annotated[
        list[str], typer.Option(metavar="FILE", help="Text, Markdown, HTML or PDF; - is standard input.")
    ],
    budget: Annotated[int | None, BUDGET] = None,
    policy: Annotated[str | None, POLICY] = None,
    trigger: Annotated[str | None, TRIGGER] = None,
    drafts: Annotated[int, DRAFTS] = 7,
    max_new_tokens: Annotated[int | None, typer.Option(help="The longest answer.  [default: the reader's]")] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON, a line a token and a last one of totals.")] = False,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answer's trace as an HTML page.")] = None,
    cache: Annotated[str | None, CACHE] = None,
    cache_size: Annotated[str, CACHE_SIZE] = "8GiB",
    no_cache: Annotated[bool, NO_CACHE] = False,
) -> None:
    """Ask a question about documents."""
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
    kept = _kept(cache, cache_size, no_cache)
    asking.ask(reader, [*document, *files], question, choice, json_lines=json, page=save, **kept)


def _kept(cache: str | None, size: str, no_cache: bool) -> dict[str, Any]:
    """The folder ``cache`` for documents, None for no folder, and the bytes ``cache_size`` that they take at most."""
    from utaca.app.cache import bytes_of, default_folder

    if cache is not None and not cache.strip():
        # As a path it would be the working directory.
        raise UserError("--cache is empty; name a folder, or give --no-cache")
    folder = Path(cache) if cache else default_folder()
    return {"cache": None if no_cache else folder, "cache_size": bytes_of(size)}


@app.command()
def score(
    reader: Annotated[str, READER],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[QUESTION ANSWER]", help="A question and the answer to score.")
    ] = None,
    document: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="The document, as for utaca ask; may be repeated.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Many of them: columns document, question, answer.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="With --csv, the file of scores.")] = None,
    budget: Annotated[int | None, typer.Option(help="Blocks of each token.  [default: the reader's]", min=1)] = None,
    detector: Annotated[
        str | None, typer.Option(help="A shipped detector or a detector's file.  [default: the reader's detector]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON, a line a token and one of totals.")] = False,
    cache: Annotated[str | None, CACHE] = None,
    cache_size: Annotated[str, CACHE_SIZE] = "8GiB",
    no_cache: Annotated[bool, NO_CACHE] = False,
) -> None:
    """Score given answers: which of their tokens are doubtful."""
    from utaca.app import score as scoring

    wanted = scoring.Wanted(reader, budget, detector, json, **_kept(cache, cache_size, no_cache))
    words = words or []
    if csv is not None:
        if words or document:
            raise UserError("--csv names documents, questions and answers in its rows; leave out the others")
        scoring.score_rows(wanted, csv, out)
        return
    if out is not None:
        raise UserError("--out is for the rows of --csv; the scores of one answer go to standard output")
    if len(words) != 2 or not document:
        raise UserError("give --document FILE, and a question and an answer in quotes, or give --csv FILE")
    scoring.score(wanted, document, *words)


@app.command()
def serve(
    reader: Annotated[str, READER],
    host: Annotated[str, HOST] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: a free one.", min=0, max=65535)] = 8000,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The most that documents take.  [default: half of what is free]")
    ] = None,
    parallel: Annotated[int, typer.Option(help="Answers at once.", min=1)] = 16,
    budget: Annotated[int | None, BUDGET] = None,
    policy: Annotated[str | None, POLICY] = None,
    trigger: Annotated[str | None, TRIGGER] = None,
    drafts: Annotated[int, DRAFTS] = 7,
    max_new_tokens: Annotated[int, typer.Option(help="The longest answer if a request names none.", min=1)] = 512,
    name: Annotated[str | None, typer.Option(help="What clients call the model.  [default: the reader's name]")] = None,
) -> None:
    """Serve a reader over the OpenAI protocol, with a page.

    Clients must show the key that the environment variable UTACA_API_KEY holds, if it is set.
    """
    from utaca.app.cache import bytes_of

    try:
        from utaca.app.serving import server
        from utaca.app.serving.protocol import ServerSettings
    except ModuleNotFoundError as error:
        raise UserError(f"utaca serve needs {error.name}; install it: pip install 'utaca[serve]'") from None
    import utaca
    from utaca.listening import bound

    room = None if memory is None else bytes_of(memory)
    key = os.environ.get("UTACA_API_KEY")
    if key == "":
        raise UserError("UTACA_API_KEY is set but empty, so no key would be asked for; unset it, or give it a key")
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
    settings = ServerSettings(name or loaded.settings.name, host, port, room, parallel, key or "", **choice)
    server.serve(loaded, settings, sockets)


@app.command()
def fetch(
    reader: Annotated[str | None, typer.Argument(help="The reader to fetch; without it, readers are listed.")] = None,
) -> None:
    """Bring a public reader's files here; list readers."""
    from utaca.readers import files

    if reader is None:
        for name in files.listed():
            print(f"{name:20} {files.state(files.listed_settings(name))}")
    elif reader not in files.listed():
        raise UserError(files.unknown(reader))
    else:
        print(files.fetch(files.listed_settings(reader)))


@app.command("fetch-tasks")
def fetch_tasks(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Without any: all of them.")] = None,
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help="tasks.path of the config.")] = Path("data/benchmarks"),
) -> None:
    """Fetch the official files of the benchmarks."""
    from utaca.tasks.fetch import OFFICIAL
    from utaca.tasks.fetch import fetch as fetched

    n_faults = 0
    for file in fetched(names or OFFICIAL, folder):
        if file.fault:
            n_faults += 1
            streams.tell(f"Error: {file.fault}.")
        else:
            done = "fetched and checked" if file.now else "is there already"
            print(f"{file.path}: {done}; {file.rows:,} rows, SHA-256 {file.sha256}", flush=True)
    if n_faults:
        raise typer.Exit(1)


@app.command()
def preflight(
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE|FILE]...", help="Further ones, as snakemake takes them.")
    ] = None,
    configfile: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="As for snakemake.")] = None,
    config: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="As for snakemake.")] = None,
) -> None:
    """Check what a run needs before its first job.

    Status 1 if something is missing.
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
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="\n".join(
        ["\b", "What snakemake --cores all makes:", *(f"  {name:<20} {what}" for name, what in TARGETS.items())]
    ),
)
def tables(context: typer.Context) -> None:
    """Make a run's tables by Snakemake, with its options.

    As in: utaca tables --configfile config/runs/paper.yaml
    """
    from utaca.runs import config_files as configfiles

    if not Path("Snakefile").is_file():
        raise UserError("utaca tables runs the workflow of a checkout; change to the folder that holds its Snakefile")
    sets_cores = any(re.match(r"-[cj]|--(cores|jobs|profile|workflow-profile)\b", word) for word in context.args)
    cores = [] if sets_cores else ["--cores", "all"]
    configfiles.check_words(context.args)
    os.execv(sys.executable, [sys.executable, "-c", _SNAKEMAKE, "results/tables", *cores, *context.args])


@app.command("check-endpoint")
def check_endpoint(
    endpoint: Annotated[str, typer.Argument(help="An endpoint of config/endpoint.")] = "gpt_oss_120b",
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="Another address, ending in /v1.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model, as the server lists it.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="The environment variable that holds the key.")
    ] = None,
) -> None:
    """Check that an endpoint answers as a judge must."""
    from utaca.data_files import root
    from utaca.endpoints import check
    from utaca.runs.compose import compose
    from utaca.settings.checks import load

    # Another model needs another name of the endpoint. The model's own may have a slash, and names are parts of paths.
    name = model and "asked"
    keys = {"base_url": base_url, "model": model, "api_key_env": api_key_env, "name": name}
    given = {key: value for key, value in keys.items() if value is not None}
    chosen = {"use": endpoint, **given}
    settings = load(compose({"judge": chosen}, root())).judge
    check(settings, f"endpoint {endpoint}")
    print(f"{settings.base_url or settings.name}: model {settings.model} answers.")


STORE = typer.Option(metavar="PLACE", help="The file, or postgresql://USER@HOST/DATABASE.")
STORED = "results/answers.sqlite"


@answers.command("list")
def list_answers(store: Annotated[str, STORE] = STORED) -> None:
    """Show what is kept, by model, version of the prompt and shape of the answer."""
    from utaca.endpoints import listing

    if store == STORED and listing.is_missing(store):
        print(f"no answers are kept: {store} does not exist; it appears with the first answer of a server")
        return
    with listing.opened(store) as answers:
        print(listing.listed(answers))


@answers.command("export")
def export_answers(
    model: Annotated[str | None, typer.Option(help="Those of one model.  [default: all]")] = None,
    store: Annotated[str, STORE] = STORED,
) -> None:
    """Write the answers with their requests as JSON lines."""
    from utaca.endpoints import listing

    with listing.opened(store) as answers:
        for line in listing.exported(answers, model):
            print(line)


@answers.command("prune")
def prune_answers(
    model: Annotated[str | None, typer.Option(help="Those of one model.")] = None,
    before: Annotated[str | None, typer.Option(metavar="DATE", help="Older ones: 2026-01-31.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count them, and remove nothing.")] = False,
    store: Annotated[str, STORE] = STORED,
) -> None:
    """Remove answers, which are then asked for anew when they are needed."""
    from utaca.endpoints import listing

    if model is None and before is None:
        raise UserError("say what to prune: --model NAME, --before DATE, or both")
    moment = before and listing.moment(before)
    with listing.opened(store) as answers:
        number = answers.prune(model=model, before=moment, dry_run=dry_run)
        print(f"{number} answers {'would be ' if dry_run else ''}removed from {answers.place}")


@app.command("serve-rules")
def serve_rules(
    host: Annotated[str, HOST] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: a free one.", min=0, max=65535)] = 8000,
) -> None:
    """Serve the offline judge over the OpenAI protocol."""
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

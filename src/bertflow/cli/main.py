"""The command line: which commands there are, and how errors end in one line and an exit code."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import threading
import warnings
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import typer

import bertflow
from bertflow.cli.applying import cache, encode, export, push, report, transform
from bertflow.cli.fitting import demo, finetune, fit
from bertflow.cli.judging import compare, diagnose, drift, evaluate
from bertflow.cli.options import Command, flattened, summary
from bertflow.cli.reproducing import isotropy, lexical, reproduce, words
from bertflow.errors import BertflowError, one_line

EXIT_CODES = (
    "0 done; 1 an input, model, file or step of the fit is at fault, and the message says what to "
    "do; 2 the command line is wrong; 3 drift says refit; 130 interrupted (Ctrl-C); 143 terminated "
    "(SIGTERM)"
)
FULL = (errno.ENOSPC, errno.EIO)
# Other libraries print nothing while they load, unless the user wants it.
QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Calibrate the sentence vectors of a frozen language model, without labels.",
    epilog=f"Exit codes: {EXIT_CODES}.",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(bertflow.__version__)
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what is done, on standard error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options before the command."""
    # Warnings that bertflow logs are shown on standard error, or all with the time and the module.
    log, handler = logging.getLogger("bertflow"), logging.StreamHandler()
    if verbose:
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
        log.setLevel(logging.INFO)
    log.addHandler(handler)
    context.call_on_close(partial(log.removeHandler, handler))
    context.call_on_close(partial(log.setLevel, logging.NOTSET))


analyze = typer.Typer(
    no_args_is_help=True,
    help="Look at an encoder as the paper does: its words, edit distance, isotropy.",
)
EVERYDAY = (fit, transform, encode, evaluate, compare, diagnose, drift, finetune, reproduce, report)
for group, commands in (
    (app, (*EVERYDAY, export, demo, push, cache)),
    (analyze, (words, lexical, isotropy)),
):
    for command in commands:
        named = group.command(command.__name__, cls=Command, help=summary(command))
        named(flattened(command))
app.add_typer(analyze, name="analyze")


def main() -> None:
    """Run the command line and exit."""
    # SIGTERM, which schedulers send, becomes the same interruption as Ctrl-C, unless it is ignored.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # It is closed.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        getattr(sys, name).reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    # The command has ended: a signal while libraries are unloaded ends the process without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(code)


_terminated = threading.Event()


def _terminate(*_: object) -> None:
    _terminated.set()
    raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    """Run the command line with these arguments, and give the exit code."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        code = 0
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            whole = typer.main.get_command(app)
            try:
                with whole.make_context("bertflow", list(arguments)) as context:
                    whole.invoke(context)
            except typer.Exit as ended:  # Help was shown, or drift was found.
                code = ended.exit_code
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        word, code = ("terminated", 143) if _terminated.is_set() else ("interrupted", 130)
        return _fail(f"{word}; {error}" if str(error) else word, code)
    except (BrokenPipeError, SystemExit) as error:
        # Rich exits where the reader of a pipe has gone.
        if not isinstance(error.__context__ or error, BrokenPipeError):
            raise
        _drop_output()
        return 0
    except Exception as error:
        # Errors of files have a name.
        if isinstance(error, OSError) and error.errno in FULL and error.filename is None:
            _drop_output()
            why = f"{error.strerror}; what was written to files is there"
            return _fail(f"cannot write to standard output: {why}", 1)
        if "--debug" in arguments:
            raise
        if isinstance(error, BertflowError):
            return _fail(str(error), 1)
        if not hasattr(error, "format_message"):
            return _fail(f"unexpected {type(error).__name__}: {error} (--debug shows where)", 1)
        parser: Any = error
        if not parser.format_message():  # Help was shown instead.
            return int(parser.exit_code)
        return _fail(f"{parser.format_message()} (see bertflow --help)", parser.exit_code)


def _fail(message: str, code: int) -> int:
    with suppress(OSError):  # Nobody can be told; the code remains.
        sys.stderr.write(f"error: {' '.join(message.split())}\n")
    return code


def _drop_output() -> None:
    """Let the rest of standard output go nowhere, which Python would try to write as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message: Any, *_place: Any, **_more: Any) -> None:
    """Show a warning in one line, without the line of source that Python adds."""
    sys.stderr.write(f"warning: {one_line(message)}\n")

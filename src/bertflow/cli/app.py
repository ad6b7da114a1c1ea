"""The command line's frame: what is said before a command, and which commands there are."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import cleandoc
from typing import Annotated

import typer

import bertflow
from bertflow.cli.analyzing import isotropy, lexical, words
from bertflow.cli.demonstration import demo
from bertflow.cli.fitting import encode, fit, transform
from bertflow.cli.judging import compare, diagnose, evaluate
from bertflow.cli.options import Command, flattened
from bertflow.cli.reproducing import reproduce
from bertflow.cli.saved import cache, push, report
from bertflow.cli.terminal import logging_to_terminal
from bertflow.cli.tuning import finetune

EXIT_CODES = (
    "0 done; 1 an input, model, file or step of the fit is at fault, and the message says what to "
    "do; 2 the command line is wrong; 130 interrupted (Ctrl-C); 143 terminated (SIGTERM)"
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Calibrate the sentence vectors of a frozen language model, without labels.",
    epilog=f"Exit codes: {EXIT_CODES}.",
    pretty_exceptions_enable=False,
)


@dataclass
class Settings:
    """What was said before the command."""

    debug: bool = False


settings = Settings()


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
    settings.debug = debug
    context.with_resource(logging_to_terminal(verbose))


analyze = typer.Typer(
    no_args_is_help=True,
    help="Look at an encoder as the paper does: its words, edit distance, isotropy.",
)
EVERYDAY = (fit, transform, encode, evaluate, compare, diagnose, finetune, reproduce, report)
for group, commands in (
    (app, (*EVERYDAY, demo, push, cache)),
    (analyze, (words, lexical, isotropy)),
):
    for command in commands:
        # Lines of a paragraph are the terminal's to break.
        paragraphs = cleandoc(command.__doc__ or "").split("\n\n")
        text = "\n\n".join(" ".join(part.split()) for part in paragraphs)
        group.command(command.__name__, cls=Command, help=text)(flattened(command))
app.add_typer(analyze, name="analyze")

"""The command line's frame: what is said before a command, and which commands there are."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated

import typer

import bertflow
from bertflow.cli.analyzing import analyze
from bertflow.cli.caching import cache
from bertflow.cli.demonstration import demo
from bertflow.cli.fitting import encode, fit, transform
from bertflow.cli.judging import compare, diagnose, evaluate
from bertflow.cli.reproduction import reproduce
from bertflow.cli.training import finetune

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Calibrate the sentence vectors of a frozen language model, without labels.",
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
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what is done.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options before the command."""
    settings.debug = debug
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")


for command in (
    fit,
    transform,
    encode,
    evaluate,
    compare,
    diagnose,
    finetune,
    reproduce,
    demo,
    cache,
):
    app.command()(command)
app.add_typer(analyze, name="analyze")

"""Where the command line starts and where its errors end: in one line and an exit code.

Exit codes: 0 done, also where whoever read the output has gone; 1 an error in input, model or
files, or one that nobody thought of; 2 wrong usage; 130 interrupted. Users read `app.EXIT_CODES`.
"""

from __future__ import annotations

import os
import signal
import sys

from bertflow.cli.interruption import Interrupted


def main() -> None:
    """Run the command line and exit."""
    code = run(sys.argv[1:])
    # All is done and said: Ctrl-C while libraries are unloaded ends the process without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name.

    Returns:
        The exit code.
    """
    try:
        try:
            return _run(arguments)
        finally:
            _stop_logging()
    except KeyboardInterrupt:  # While an error was being said, or after all else.
        _stop_logging()
        return _fail("interrupted", 130)


def _run(arguments: list[str]) -> int:
    # What other libraries print while they load is not ours to show; the user's own wish wins.
    for name, value in {
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }.items():
        os.environ.setdefault(name, value)
    try:
        from bertflow.cli.app import app, settings

        code = app(arguments, prog_name="bertflow", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # The parser has caught Ctrl-C.
            return _fail("interrupted", 130)
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, EOFError):
        return _fail("interrupted", 130)
    except Interrupted as error:
        return _fail(f"interrupted; {error}", 130)
    except (BrokenPipeError, SystemExit) as error:
        # Parser and terminal make of a reader that has gone an end of their own.
        if not isinstance(error.__context__ or error, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if "bertflow.cli.app" not in sys.modules or settings.debug:
            raise
        return _explain(error)


def _stop_logging() -> None:
    if "bertflow.cli.terminal" in sys.modules:
        sys.modules["bertflow.cli.terminal"].stop_logging()


def _explain(error: Exception) -> int:
    from bertflow.errors import BertflowError

    if type(error).__name__ == "Abort":
        return _fail("interrupted", 130)
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        if not error.format_message():  # Help was shown instead.
            return int(error.exit_code)
        return _fail(f"{error.format_message()} (see bertflow --help)", int(error.exit_code))
    if isinstance(error, BertflowError):
        return _fail(str(error), 1)
    return _fail(f"unexpected {type(error).__name__}: {error} (--debug shows where)", 1)


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    sys.stderr.write(f"error: {line}\n")
    return code

"""Where the command line starts and where its errors end: in one line and an exit code.

Exit codes: 0 done, also where the reader of a pipe has gone; 1 an error in input, model or files,
or an unexpected one; 2 wrong usage; 130 interrupted, 143 terminated. Users read `app.EXIT_CODES`.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bertflow.cli.interruption import (
    Interrupted,
    catch_termination,
    how_it_ended,
    let_termination_end,
)

HOME = Path(__file__).parent.parent
# Other libraries print nothing while they load, unless the user wants it.
QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def main() -> None:
    """Run the command line and exit."""
    catch_termination()
    _open_streams()
    code = run(sys.argv[1:])
    # The command has ended: Ctrl-C while libraries are unloaded ends the process without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    let_termination_end()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name.

    Returns:
        The exit code.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        from bertflow.cli.app import app, settings

        with _plain_warnings():
            code = app(arguments, prog_name="bertflow", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # The parser has caught Ctrl-C.
            return _stopped()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, EOFError):
        return _stopped()
    except Interrupted as error:
        return _stopped(f"; {error}")
    except (BrokenPipeError, SystemExit) as error:
        # Parser and terminal raise errors of their own where the reader of a pipe has gone.
        if not isinstance(error.__context__ or error, BrokenPipeError):
            raise
        _drop_output()
        return 0
    except Exception as error:
        if _is_lost_output(error):
            _drop_output()
            why = f"{error.strerror}; what was written to files is there"  # type: ignore[attr-defined]
            return _fail(f"cannot write to standard output: {why}", 1)
        if "bertflow.cli.app" not in sys.modules or settings.debug:
            raise
        return _explain(error)


def _open_streams() -> None:
    """Open standard streams that are closed, and escape letters that they cannot hold.

    Otherwise the next file that is opened would get the number of a closed stream, and what
    libraries print would be written into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_lost_output(error: Exception) -> bool:
    """Whether standard output cannot be written to: errors of files have a name."""
    lost = (errno.ENOSPC, errno.EIO, errno.EBADF)
    return isinstance(error, OSError) and error.errno in lost and error.filename is None


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show bertflow's warnings in one line, without the line of source that Python adds."""
    with warnings.catch_warnings():
        if not sys.warnoptions:  # The user's own wish wins.
            warnings.filterwarnings("default", category=UserWarning, module=r"bertflow\b")
        others = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], filename: str, *rest: Any, **more: Any
        ) -> None:
            ours = Path(filename).is_relative_to(HOME) or category.__module__.startswith("bertflow")
            if not (ours and issubclass(category, UserWarning)):
                others(message, category, filename, *rest, **more)
                return
            with suppress(OSError):
                sys.stderr.write(f"warning: {' '.join(str(message).split())}\n")

        warnings.showwarning = show
        yield


def _drop_output() -> None:
    """Let the rest of standard output go nowhere, which Python would try to write as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(error: Exception) -> int:
    from bertflow.errors import BertflowError

    if type(error).__name__ == "Abort":
        return _stopped()
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        if not error.format_message():  # Help was shown instead.
            return int(error.exit_code)
        return _fail(f"{error.format_message()} (see bertflow --help)", int(error.exit_code))
    if isinstance(error, BertflowError):
        return _fail(str(error), 1)
    return _fail(f"unexpected {type(error).__name__}: {error} (--debug shows where)", 1)


def _stopped(why: str = "") -> int:
    word, code = how_it_ended()
    return _fail(f"{word}{why}", code)


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    with suppress(OSError):  # Nobody can be told; the code remains.
        sys.stderr.write(f"error: {line}\n")
    return code

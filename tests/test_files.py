"""Where files are written: never over what is read, through links, with the permissions they had.

Of devices and pipes the tests make their own, in their folder: nothing here may touch the system's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bertflow.calibrators import Whitening, load_calibrator, save_calibrator
from bertflow.encoders import encode_file, load_encoder
from bertflow.errors import InputError, ModelError, quoted
from bertflow.io.files import (
    check_apart,
    check_replaceable,
    check_writable,
    part_folder,
    part_path,
    write_bytes,
    write_text,
)
from bertflow.io.vectors import read_vectors, transform_file
from bertflow.models import calibrate, save_model
from bertflow.report import build_report, write_report
from conftest import save_tiny_encoder, tree

posix = pytest.mark.skipif(sys.platform == "win32", reason="names and modes of POSIX")
WIDTH = 16


@pytest.fixture
def work(tmp_path: Path, tiny_sentences: list[str], rng, monkeypatch) -> Path:
    """A folder with an encoder, a calibrator, a calibrated model, vectors, sentences and pairs."""
    save_tiny_encoder(tmp_path / "enc")
    rows = rng.normal(2, 1, size=(60, WIDTH)).astype(np.float32)
    np.save(tmp_path / "v.npy", rows)
    save_calibrator(Whitening(dim=4).fit(rows), tmp_path / "w")
    encoder = load_encoder(tmp_path / "enc", device="cpu")
    save_model(calibrate(encoder, tiny_sentences, Whitening()), tmp_path / "m")
    (tmp_path / "texts").mkdir()
    for name in ("c.txt", "texts/one.txt", "texts/two.jsonl"):
        line = '{"text": "a dog eats"}' if name.endswith("jsonl") else "a dog eats"
        (tmp_path / name).write_text(f"{line}\n" * 20)
    pairs = zip(tiny_sentences[:20], tiny_sentences[20:40], range(20), strict=True)
    lines = ["a\tb\tscore\n", *(f"{a}\t{b}\t{score % 6}\n" for a, b, score in pairs)]
    (tmp_path / "p.tsv").write_text("".join(lines))
    (tmp_path / "link").symlink_to("p.tsv")
    (tmp_path / "linked").symlink_to("w")
    (tmp_path / "hard.tsv").hardlink_to(tmp_path / "p.tsv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# What is read is not written.


PAIRS = ["evaluate", "enc", "--pairs", "p.tsv", "--columns", "a,b,score"]
OVER = [
    ([*PAIRS, "--json", "p.tsv"], "--json p.tsv overlaps with what --pairs reads"),
    ([*PAIRS, "--markdown", "./texts/../p.tsv"], "p.tsv overlaps with what --pairs reads"),
    ([*PAIRS, "--markdown", "link"], "--markdown link overlaps with what --pairs reads"),
    ([*PAIRS, "--json", "hard.tsv"], "--json hard.tsv overlaps with what --pairs reads"),
    ([*PAIRS, "--json", "r", "--markdown", "./r"], "--json and --markdown are both r"),
    ([*PAIRS, "--json", "-", "--markdown", "-"], "both standard output"),
    ([*PAIRS, "--json", "enc/config.json"], "overlaps with what MODEL reads (enc)"),
    ([*PAIRS, "--json", "enc/new.json"], "overlaps with what MODEL reads (enc)"),
    ([*PAIRS, "--against", "m", "--json", "m/r.json"], "overlaps with what --against reads"),
    (["diagnose", "v.npy", "--json", "v.npy"], "--json v.npy overlaps with what VECTORS reads"),
    (["diagnose", "enc", "--corpus", "c.txt", "--json", "c.txt"], "what --corpus reads"),
    (["compare", "enc", "--pairs", "p.tsv", "--json", "p.tsv"], "what --pairs reads"),
    (["analyze", "words", "enc", "--json", "enc/config.json"], "what ENCODER reads"),
    (["analyze", "lexical", "enc", "--pairs", "p.tsv", "--json", "p.tsv"], "--pairs reads"),
    (["analyze", "isotropy", "enc", "--corpus", "c.txt", "--markdown", "c.txt"], "--corpus reads"),
    (["transform", "w", "--vectors", "v.npy", "--output", "v.npy"], "what --vectors reads"),
    (
        ["transform", "linked", "--vectors", "v.npy", "--output", "w/model.safetensors"],
        "overlaps with what DIR reads (linked)",
    ),
    (["encode", "enc", "--corpus", "texts/*.txt", "--output", "texts/one.txt"], "--corpus reads"),
    (["encode", "enc", "--corpus", "texts", "--output", "texts/two.jsonl"], "--corpus reads"),
    (["encode", "enc", "--corpus", "c.txt", "--output", "enc/v.npy"], "what MODEL reads (enc)"),
    (["fit", "--encoder", "m", "--corpus", "c.txt", "--output", "m"], "what --encoder reads"),
    (["fit", "--encoder", "m", "--corpus", "c.txt", "--output", "m/new"], "--encoder reads (m)"),
    (
        ["fit", "--encoder", "enc", "--corpus", "texts", "--output", "texts"],
        "--output texts overlaps with what --corpus reads",
    ),
    (["demo", "--encoder", "m", "--output", "m"], "what --encoder reads"),
    (["finetune", "--encoder", "m", "--nli", "snli", "--output", "m"], "what --encoder reads"),
    (["reproduce", "table1", "--encoder", "enc", "--output", "."], "what --encoder reads"),
    (["report", "m", "--output", "m/r.html"], "overlaps with what the report reads (m)"),
]


def test_no_output_is_what_is_read(work, refused):
    for arguments, said in OVER:
        line = refused(*arguments)
        assert said in line
        assert "; give " in line


def test_a_page_is_not_written_over_its_sentences(work, refused):
    shutil.copy("c.txt", "c.html")
    Path("c.txt").unlink()
    Path("c.txt").hardlink_to("c.html")
    said = refused("report", "v.npy", "--corpus", "c.txt", "--output", "c.html")
    assert said.startswith("--output c.html overlaps with what --corpus reads")


def test_a_folder_that_holds_the_encoder_is_not_replaced(work, refused):
    # All in it is bertflow's own, so that it could be replaced.
    (inside,) = [path.parent for path in Path("m").rglob("tokenizer.json")]
    command = ["fit", "--corpus", "c.txt", "--calibrator", "whitening"]
    said = refused(*command, "--encoder", inside, "--output", "m")
    assert said.startswith("--output m ")
    assert "what --encoder reads" in said


def test_what_is_not_there_is_no_input(tmp_path):
    check_apart({"--json": tmp_path / "r"}, [("MODEL", "owner/name"), ("--corpus", "a\0b" * 9999)])
    check_apart({"--json": None, "--markdown": tmp_path / "r"}, [])


def test_an_output_beside_its_input_is_fine(work, done):
    done("transform", "w", "--vectors", "v.npy", "--output", "v.npy.npy")
    done("fit", "--vectors", "v.npy", "--output", "w2", "--calibrator", "standardization")
    done("fit", "--vectors", "v.npy", "--output", "w2", "--calibrator", "standardization")


# Links and permissions.


def written_by_rows(path: Path) -> None:
    source = path.parent.parent / "ones.npy"
    np.save(source, np.ones((3, 2), dtype=np.float32))
    transform_file(lambda rows: 2 * rows, source, path)


WRITERS: dict[str, Callable[[Path], None]] = {
    "text": lambda path: write_text(path, "new"),
    "rows": written_by_rows,
}
every_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@posix
@every_writer
def test_a_link_is_followed_and_stays(tmp_path, write):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "file.npy", tmp_path / "link.npy"
    target.write_text("old")
    link.symlink_to("there/file.npy")
    write(link)
    assert link.is_symlink()
    assert target.read_bytes() != b"old"
    assert [path.name for path in target.parent.iterdir()] == ["file.npy"]
    (tmp_path / "new.npy").symlink_to("there/made.npy")
    write(tmp_path / "new.npy")
    assert (tmp_path / "there" / "made.npy").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.npy", "new.npy", "there"]


@posix
@every_writer
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_permissions_stay_what_they_were(tmp_path, write, mode):
    path = tmp_path / "file.npy"
    path.write_text("old")
    path.chmod(mode)
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@posix
def test_nobody_else_reads_a_private_file_meanwhile(tmp_path):
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(source, np.random.default_rng(0).normal(size=(30, 3)))
    target.write_text("old")
    target.chmod(0o600)
    seen = []

    def look(*_):
        seen.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob(".out*.bertflow"))

    transform_file(lambda rows: 2 * rows, source, target, progress=look)
    assert seen == [0o600]


@posix
def test_encoded_rows_follow_links_and_keep_permissions_too(tmp_path, tiny_bert, tiny_sentences):
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "z.npy"
    target.write_text("old")
    target.chmod(0o600)
    (tmp_path / "z.npy").symlink_to(target)
    seen = []

    def look(*_):
        rows = list(target.parent.glob(".z*.bertflow"))
        seen.extend(stat.S_IMODE(path.stat().st_mode) for path in [*rows, part_path(target)])

    encoder = load_encoder(tiny_bert, device="cpu")
    encode_file(encoder, tiny_sentences, tmp_path / "z.npy", progress=look)
    assert seen[:2] == [0o600, 0o700]
    assert set(seen) == {0o600, 0o700}
    assert (tmp_path / "z.npy").is_symlink()
    assert np.load(target).shape == (300, WIDTH)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [path.name for path in target.parent.iterdir()] == ["z.npy"]


@posix
def test_a_file_that_is_protected_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("mine")
    access = os.access  # Whoever may do everything is not told by the system.
    monkeypatch.setattr(os, "access", lambda one, how: one != path and access(one, how))
    with pytest.raises(ModelError, match="may not be written to; give a file"):
        check_writable(path)


def test_a_folder_that_cannot_be_moved_is_refused_before_the_work(tmp_path, monkeypatch):
    """Nothing can take the place of it at the end."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for target in (".", here, "../here"):
        with pytest.raises(ModelError, match="is or holds the current folder, which no"):
            check_replaceable(target)
    monkeypatch.chdir("/")
    check_replaceable(here)
    monkeypatch.setattr("os.path.ismount", lambda path: path == here)
    with pytest.raises(ModelError, match="it is a mount point, or"):
        check_replaceable(here)
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


@pytest.mark.parametrize("check", [check_replaceable, check_writable])
def test_a_name_too_long_to_be_made_beside_is_refused_before_the_work(tmp_path, check):
    target = tmp_path / "new" / ("n" * 250)  # Its own name would do.
    with pytest.raises(ModelError, match=r"cannot write .*: File name too long"):
        check(target)
    assert list(tmp_path.glob("new/*")) == []


def test_what_utf_8_cannot_hold_is_escaped(tmp_path):
    write_text(tmp_path / "file", "a\udcffb é")
    assert (tmp_path / "file").read_bytes() == "a\\udcffb é".encode()


# Devices, pipes, sockets: made by the tests, in their own folder.


def made_device(folder: Path, minor: int) -> Path:
    """A copy of a device: 3 swallows all, 7 is always full."""
    path = folder / f"device-{minor}"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        os.close(os.open(path, os.O_WRONLY))
    except (OSError, AttributeError):
        pytest.skip("no devices can be made here")
    return path


def read_later(path: Path) -> tuple[threading.Thread, list[bytes]]:
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    reader.start()
    return reader, found


@posix
def test_a_device_stays_one(work, cli):
    device = made_device(work, 3)
    assert cli("diagnose", "v.npy", "--json", device)[0] == 0
    write_bytes(device, b"gone")
    assert stat.S_ISCHR(device.stat().st_mode)


@posix
def test_a_full_device_is_one_line(work, cli):
    device = made_device(work, 7)
    code, _, err = cli("diagnose", "v.npy", "--json", device)
    assert (code, err.count("\n")) == (1, 1)
    start, _, kept = err.strip().partition("; what was computed is in ")
    assert start == f"error: cannot write {device}: No space left on device"
    assert json.loads(Path(kept).read_text())["source"] == "v.npy"


@posix
@pytest.mark.parametrize("option", ["--json", "--markdown"])
def test_a_pipe_gets_the_text_and_stays_one(work, cli, option):
    os.mkfifo("pipe")
    reader, found = read_later(work / "pipe")
    assert cli("diagnose", "v.npy", option, "pipe")[0] == 0
    reader.join(30)
    assert cli("diagnose", "v.npy", option, "file")[0] == 0
    assert found == [(work / "file").read_bytes()]
    assert stat.S_ISFIFO((work / "pipe").stat().st_mode)


@posix
@pytest.mark.parametrize("how", ["transform", "encode", "api", "encode api"])
def test_rows_go_to_files_alone(work, tiny_bert, refused, how):
    os.mkfifo("pipe.npy")
    if how == "transform":
        said = refused("transform", "w", "--vectors", "v.npy", "--output", "pipe.npy")
    elif how == "encode":
        said = refused("encode", "enc", "--corpus", "c.txt", "--output", "pipe.npy")
    else:
        with pytest.raises(ModelError) as caught:
            if how == "api":
                written_by_rows(Path("pipe.npy"))
            else:
                encode_file(load_encoder(tiny_bert, device="cpu"), ["a dog"], "pipe.npy")
        said = str(caught.value)
    assert said == (
        "cannot write pipe.npy: it is a device or pipe, which no file can take the place of; "
        "give a file"
    )
    assert stat.S_ISFIFO((work / "pipe.npy").stat().st_mode)


@posix
def test_a_socket_is_refused(work, refused):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert refused("diagnose", "v.npy", "--json", "socket").startswith("cannot write socket")


@posix
def test_a_page_may_be_written_to_a_pipe(work):
    os.mkfifo("pipe.html")
    reader, found = read_later(work / "pipe.html")
    size = write_report(build_report("v.npy"), "pipe.html")
    reader.join(30)
    assert [len(one) for one in found] == [size]


# Standard output.


def test_json_on_standard_output_is_all_there_is(work, done):
    shown = done("diagnose", "v.npy")
    out = done("diagnose", "v.npy", "--json", "-", "--markdown", "r.md")
    done("diagnose", "v.npy", "--json", "r.json")
    assert out == Path("r.json").read_text()
    assert json.loads(out)["source"] == "v.npy"
    assert done("diagnose", "v.npy", "--markdown", "-") == Path("r.md").read_text() != shown
    assert not Path("-").exists()


def test_other_outputs_are_no_standard_output(work, refused):
    for arguments in [
        ["transform", "w", "--vectors", "v.npy", "--output", "-"],
        ["encode", "enc", "--corpus", "c.txt", "--output", "-"],
        ["fit", "--vectors", "v.npy", "--output", "-"],
    ]:
        assert refused(*arguments).startswith(
            "cannot write -: it stands for standard output; give a f"
        )


SHELL = f'{quoted(sys.executable)} -c "from bertflow.cli.main import main; main()" "$@"'


def in_shell(streams: str, *arguments: str, **env: str) -> subprocess.CompletedProcess:
    """A process of its own, its streams as a shell opens and closes them."""
    return subprocess.run(
        ["sh", "-c", f"{SHELL} {streams}", "bertflow", *arguments],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
        timeout=300,
        env={**os.environ, **env},
    )


@posix
@pytest.mark.slow
def test_closed_streams_are_no_errors(work):
    ran = in_shell(">&-", "transform", "w", "--vectors", "v.npy", "--output", "z.npy")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert np.load("z.npy").shape == (60, 4)


def test_standard_input_that_is_closed_is_one_line(work, refused, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    said = refused("encode", "enc", "--corpus", "-", "--output", "t.npy")
    assert said.startswith("standard input is closed")


@posix
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [(["transform", "w", "--vectors", "v.npy", "--output", "z.npy"], ""), (["--help"], "1")],
    ids=["transform", "help"],
)
def test_standard_output_that_is_full_is_one_line_and_files_are_written(
    work, arguments, unbuffered
):
    device = made_device(work, 7)
    ran = in_shell(f">{device.name}", *arguments, PYTHONUNBUFFERED=unbuffered)
    assert ran.stderr == (
        "error: cannot write to standard output: No space left on device; what was written to "
        "files is there\n"
    )
    assert ran.returncode == 1
    assert Path("z.npy").is_file() == ("z.npy" in arguments)


@posix
@pytest.mark.slow
def test_what_a_terminal_cannot_show_is_escaped(work):
    Path("v.npy").rename("☃.npy")
    command = ["transform", "w", "--vectors", "☃.npy", "--output", "ü.npy"]
    ran = in_shell("", *command, PYTHONIOENCODING="ascii")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "wrote 60 vectors of 4 dimensions to \\xfc.npy\n"


# Commands to paste.


NAMES = ["plain", "two words", "it's", "ünï ☃", "$HOME", "a\\b'c"]


@posix
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_quoted_name_is_the_name_in_a_shell_and_one_line(name):
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("no bash")
    text = quoted(name)
    assert len(text.splitlines()) == 1
    said = subprocess.run(
        [shell, "-c", f"printf %s {text}"],
        capture_output=True,
        check=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert os.fsdecode(said.stdout) == name


@posix
@pytest.mark.parametrize("name", ["ünï ☃", "two words"])
def test_the_command_that_fit_shows_can_be_pasted(work, done, name):
    out = done("fit", "--vectors", "v.npy", "--calibrator", "whitening", "--output", name)
    last = out.splitlines()[-1]
    assert last.endswith(f": bertflow transform {quoted(name)} --vectors IN.npy --output OUT.npy")
    assert last.startswith("saved to ")
    assert (work / name / "config.json").is_file()


@posix
def test_names_that_break_lines_are_shown_on_one(work, done):
    Path("v.npy").rename("v\n\x1b[2J.npy")
    out = done("transform", "w", "--vectors", "v\n\x1b[2J.npy", "--output", "z\n.npy")
    assert out == "wrote 60 vectors of 4 dimensions to z\\n.npy\n"
    assert "v\\n\\x1b[2J.npy: 60" in done("diagnose", "v\n\x1b[2J.npy")


# One writer, and SIGTERM.


@pytest.mark.parametrize("link", [False, pytest.param(True, marks=posix)])
def test_two_processes_do_not_transform_to_one_output(work, cli, link):
    output = Path("z.npy")
    if link:
        output.symlink_to("other.npy")
    with part_folder(work / ("other.npy" if link else "z.npy")):
        code, _, err = cli("transform", "w", "--vectors", "v.npy", "--output", "z.npy")
    assert code == 1
    assert err.startswith("error: cannot write z.npy: another process is writing it (")
    assert not output.exists()
    assert cli("transform", "w", "--vectors", "v.npy", "--output", "z.npy")[0] == 0
    assert not list(work.glob(".*"))


SLOW = """
import sys, time
from bertflow.io import vectors
from bertflow.cli.main import main
vectors.CHUNK_ROWS = 8
chunk = vectors._chunk

def slow(rows, start):
    if start == 16:
        print("going", file=sys.stderr, flush=True)
        time.sleep(60)
    return chunk(rows, start)

vectors._chunk = slow
main()
"""


def terminated(command: list[str], ready: str, *, ignored: bool = False) -> tuple[int, str]:
    """Send SIGTERM once a process has said a word: exit code, and what it says after."""
    way = (lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)) if ignored else None
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=way) as running:
        assert running.stderr is not None
        line = running.stderr.readline()
        assert line.strip() == ready, line + running.stderr.read()
        running.send_signal(signal.SIGTERM)
        if ignored:
            time.sleep(0.5)
            assert running.poll() is None
            running.kill()
        return running.wait(60), running.stderr.read()


@posix
@pytest.mark.nightly
def test_sigterm_is_a_line_and_143_and_leaves_nothing(work):
    before = tree(work)
    command = [sys.executable, "-c", SLOW, "transform", "w", "--vectors", "v.npy"]
    assert terminated([*command, "--output", "z.npy"], "going") == (143, "error: terminated\n")
    assert tree(work) == before


@posix
@pytest.mark.nightly
def test_who_is_started_to_ignore_sigterm_does(work):
    command = [sys.executable, "-c", SLOW, "transform", "w", "--vectors", "v.npy"]
    code, _ = terminated([*command, "--output", "z.npy"], "going", ignored=True)
    assert code == -signal.SIGKILL


ENCODING = """
import sys, time
from bertflow.cli.main import main
from bertflow.encoders.sentence_cache import Unfinished
add = Unfinished.add

def slow(self, *part):
    add(self, *part)
    print("going", file=sys.stderr, flush=True)
    time.sleep(60)

Unfinished.add = slow
main()
"""


@posix
@pytest.mark.slow
def test_what_sigterm_stops_goes_on(work, tiny_sentences, done):
    Path("c.txt").write_text("\n".join(tiny_sentences) + "\n")
    command = ["encode", "enc", "--corpus", "c.txt", "--no-cache", "--output", "z.npy"]
    code, said = terminated([sys.executable, "-c", ENCODING, *command], "going")
    assert code == 143
    folder = part_path(work / "z.npy")
    assert said == f"error: terminated; the same command goes on from {folder}\n"
    assert any(folder.glob("*.npz"))
    done(*command)
    assert not folder.exists()
    assert np.load("z.npy").shape == (300, WIDTH)


def test_the_library_leaves_sigterm_alone(work):
    before = signal.getsignal(signal.SIGTERM)
    transform_file(np.negative, "v.npy", "z.npy")
    with pytest.raises(InputError):
        transform_file(np.negative, "v.npy", "v.npy")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_row_that_is_not_finite_is_named_with_its_file(work, refused):
    for command in [
        ["fit", "--vectors", "nan.npy", "--output", "new"],
        ["transform", "w", "--vectors", "nan.npy", "--output", "z.npy"],
        ["diagnose", "nan.npy"],
    ]:
        rows = np.load("v.npy")
        rows[7, 1] = np.nan
        np.save("nan.npy", rows)
        assert refused(*command).startswith("nan.npy contains NaN in row 7 ")


def test_what_is_no_path_is_refused_in_one_line(tmp_path):
    whitening = Whitening().fit(np.random.default_rng(0).normal(size=(50, 4)))
    for path in (f"{tmp_path}/a\0b", None, b"a", 3):
        for write in (write_text, lambda path, _: save_calibrator(whitening, path)):
            with pytest.raises(InputError, match=r"^expected the path of a file or folder, got"):
                write(path, "text")
        for read in (read_vectors, load_calibrator):
            with pytest.raises(InputError, match=r"^expected the path of a file or folder, got"):
                read(path)


@posix
def test_where_permissions_cannot_be_set_no_file_becomes_more_open(tmp_path, monkeypatch):
    private = tmp_path / "private.txt"
    private.write_text("before")
    private.chmod(0o600)

    def refuse(self, mode):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(ModelError, match="Operation not permitted"):
        write_text(private, "after")
    assert private.read_text() == "before"
    write_text(tmp_path / "new.txt", "after")
    write_text(tmp_path / "new.txt", "again")  # Nothing has to be changed.

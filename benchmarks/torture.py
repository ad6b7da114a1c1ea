"""Ends commands at any moment, and checks that the old output or the new is there, never half.

Run it with `python -m benchmarks.torture`. Each command runs in a fork of one process that has
imported everything, is ended, looked at, and run again, to the end. Then its output must be what an
uninterrupted run writes, byte by byte, and nothing else may be left. Ways to end it:

- moment: SIGKILL to its process group at a random moment, one in each of as many equal parts of the
  time an uninterrupted run takes
- step: SIGKILL just before the n-th file or folder is made, moved or removed
- write: killed by the system in the midst of a write, when a file gets half as large as it will be
- full: the same, but as an error: there is no more room
- ctrl-c: SIGINT at a random moment

Besides, two processes run the same command, or two commands share one cache, at the same time.
Checkpoints are written more often than in earnest, groups of sentences are smaller, and each batch
of them is kept at once, so that there is something to go on from after a part of a second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# A fork must find no threads: whatever computes is single-threaded, and does so in a fork.
ALONE = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    # What `run` sets for a process of its own, which has imported nothing before.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
WORDS = (
    "a the man woman dog cat is was are plays playing guitar piano on in at of and not runs eats "
    "food bread street house two three children red blue big small old new train car bird flies"
).split()
SENTENCES, ROWS, WIDTH = 1500, 2000, 16
LIMIT = 120.0
# Of an end: it came before the command was through.
WAYS = ("moment", "step", "write", "full", "ctrl-c")
# Kept results of a reproduction.
KEPT = ("records/", "vectors/cuts/")
# What differs between two uninterrupted runs, too.
TIMES = {"seconds", "encode_seconds", "fit_seconds", "time", "resumed_at"}


@dataclass(frozen=True)
class Case:
    """A command to be ended.

    Attributes:
        name: For the table.
        arguments: Of the command line; inputs are absolute, outputs in the folder where it runs.
        output: The file or folder that it writes.
        kills: The share of the kills asked for that it gets.
        cached: Whether the cache is used.
    """

    name: str
    arguments: Sequence[str]
    output: str
    kills: float = 1.0
    cached: bool = True

    def command(self) -> list[str]:
        """The arguments, with or without the cache."""
        cut = [] if self.cached or self.name.split()[0] not in ("fit", "encode") else ["--no-cache"]
        return [*self.arguments, *cut]


@dataclass(frozen=True)
class Order:
    """How to end a command.

    Attributes:
        way: One of WAYS.
        at: The share of the time of an uninterrupted run, the number of the step, or of bytes.
    """

    way: str
    at: float


@dataclass
class End:
    """One end of a command, and what was found.

    Attributes:
        case: Its name.
        way: One of WAYS.
        at: As in `Order`.
        before: What was there at first: "absent" or "old".
        landed: Where: after which file operation, or "begun" or "through".
        found: "absent", "old", "new" or "half".
        kept: Whether there was something to go on from.
        wrong: What was not as it should be.
    """

    case: str
    way: str
    at: float
    before: str
    landed: str = ""
    found: str = ""
    kept: bool = False
    wrong: list[str] = field(default_factory=list)


@dataclass
class Ended:
    """How a process ended: its exit code, what it did last, all it did, and its standard error."""

    code: int
    last: str
    steps: int
    error: str
    seconds: float


class Child:
    """A command in a fork, in a process group of its own."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        *,
        step: int = 0,
        size: int = 0,
        die: bool = True,
    ) -> None:
        self.folder = folder
        self.began = time.monotonic()
        self._reader, writer = os.pipe()
        # A pipe, too: a file would be limited like others.
        self._said, said = os.pipe()
        self._last, self._steps, self._rest = "begun", 0, b""
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                os.close(self._reader)
                os.close(self._said)
                code = _in_child(list(arguments), folder, (writer, said), step, size, die)
            finally:
                os._exit(code)
        os.close(writer)
        os.close(said)
        while os.getpgid(self.pid) != self.pid:  # Whoever ends its group must find it.
            time.sleep(0.001)

    def wait(self, seconds: float) -> bool:
        """Read what it does for so long; whether it is still running then."""
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, until - time.monotonic())
            if select.select([self._reader], [], [], left)[0]:
                if not (data := os.read(self._reader, 65536)):
                    return False
                self._take(data)
            elif not left:
                return True

    def send(self, sign: int) -> None:
        """Send a signal to all of its processes."""
        os.killpg(self.pid, sign)

    def end(self) -> Ended:
        """Wait for its end."""
        if self.wait(LIMIT):
            self.send(signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        while data := os.read(self._reader, 65536):
            self._take(data)
        os.close(self._reader)
        with os.fdopen(self._said) as file:
            said = file.read()
        code = os.waitstatus_to_exitcode(status)
        return Ended(code, self._last, self._steps, said, time.monotonic() - self.began)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._steps += len(lines)
        if lines:
            self._last = lines[-1].decode()


def _in_child(
    arguments: list[str], folder: Path, pipes: tuple[int, int], step: int, size: int, die: bool
) -> int:
    """Run the command line, telling each change of a file, and be gone where that is asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Until the command line has begun.
    os.setsid()
    os.chdir(folder)
    writer, error = pipes
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(error, 2)
    os.environ["BERTFLOW_CACHE"] = str(folder / "cache")

    from bertflow.calibrators import training
    from bertflow.encoders import embedding, encoding
    from bertflow.finetuning import siamese

    training.SAVED_SECONDS = 0.0
    embedding.CHUNK_SENTENCES = 16  # A small encoder takes four times as many.
    encoding.PART_SECONDS = 0.0  # Each batch is a part.
    siamese._arguments = _often(siamese._arguments)
    count = [0]

    def tell(event: str, path: str) -> None:
        count[0] += 1
        os.write(writer, f"{event} {path}\n".encode())
        if count[0] == step:
            os.kill(os.getpid(), signal.SIGKILL)

    root = f"{folder}/"

    def hook(event: str, args: tuple[Any, ...]) -> None:
        made = event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT
        if not made and event not in ("os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            return
        if isinstance(args[0], int):
            return
        path = str(Path(os.fsdecode(args[0])).absolute())
        if path.startswith(root):
            tell(event.removeprefix("os."), path.removeprefix(root))

    if size:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        if die:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    sys.addaudithook(hook)
    from bertflow.cli.main import run

    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    sys.stdout = os.fdopen(os.dup(1), "w")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run(arguments)
    sys.stderr.flush()
    return code


def _often(arguments: Callable[..., Any]) -> Callable[..., Any]:
    def with_more_checkpoints(*given: Any) -> Any:
        made = arguments(*given)
        made.save_steps = min(made.save_steps, 4)
        return made

    return with_more_checkpoints


class Torture:
    """Cases in a folder, and what came of them.

    Args:
        root: An empty folder; inputs and what uninterrupted runs write are kept there.
        seed: Of the moments.
        scale: Of the inputs' size.
    """

    def __init__(self, root: Path, seed: int = 0, scale: float = 1.0) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.ends: list[End] = []
        self.seconds: dict[str, float] = {}
        self._number = 0
        _prepared(root, scale)

    def cases(self) -> list[Case]:
        """All that are there."""
        root = self.root
        flow = ["--calibrator", "flow", "--set", "width=8", "--set", "batch_size=16"]
        text = ["--encoder", f"{root}/encoder", "--corpus", f"{root}/corpus.txt"]
        finetune = ["--nli", "snli", "--data", f"{root}/data", "--batch-size", "8"]
        return [
            Case(
                "fit vectors",
                [
                    "fit",
                    "--vectors",
                    f"{root}/x.npy",
                    "--output",
                    "out",
                    *flow,
                    "--set",
                    "epochs=8",
                ],
                "out",
            ),
            Case("fit text", ["fit", *text, "--output", "out", *flow, "--set", "epochs=8"], "out"),
            Case(
                "encode", ["encode", f"{root}/encoder", *text[2:], "--output", "out.npy"], "out.npy"
            ),
            Case(
                "finetune",
                ["finetune", "--encoder", f"{root}/encoder", *finetune, "--output", "out"],
                "out",
                kills=0.2,
            ),
            Case(
                "compare",
                [
                    *["compare", f"{root}/encoder", "--task", "stsb", "--data", f"{root}/data"],
                    *["--seeds", "2", "--jobs", "1", "--json", "out.json"],
                ],
                "out.json",
                kills=0.2,
            ),
            Case(
                "reproduce",
                [
                    *["reproduce", "table2", "table5", "--encoder", f"{root}/encoder"],
                    *["--data", f"{root}/data", "--max-length", "32", "--seeds", "1"],
                    *["--jobs", "1", "--output", "out", "--device", "cpu"],
                ],
                "out",
                kills=0.2,
            ),
        ]

    def run(self, case: Case, kills: int, ways: Sequence[str] = WAYS) -> None:
        """End a command in all ways, and check.

        Args:
            case: The command.
            kills: How many moments; of steps and Ctrl-C a part of that.
            ways: Some of WAYS.
        """
        whole, new = self._whole(case)
        self.seconds[case.name] = whole.seconds
        old = self._old(case)
        starts = ["absent", "old"] if old is not None else ["absent"]
        for n, order in enumerate(self._planned(case, kills, ways, whole)):
            before = starts[n % len(starts)]
            folder = self._folder()
            if before == "old" and old is not None:
                _copy(old, folder / case.output)
            end = End(case.name, order.way, round(order.at, 3), before)
            ended = self._carried_out(order, case, folder, whole)
            self._ended(case, end, ended, folder, new, old)
            self.ends.append(end)
            shutil.rmtree(folder)

    def together(self, case: Case) -> list[str]:
        """Run a command twice at the same time, and two that share a cache; what was wrong."""
        _, new = self._whole(case)
        wrong = []
        folder = self._folder()
        children = [Child(case.command(), folder) for _ in range(2)]
        ends = [child.end() for child in children]
        refused = [end for end in ends if "another process is writing it" in end.error]
        if any(end.code != 0 for end in ends if end not in refused) or len(refused) > 1:
            wrong.append(f"both: {[(end.code, end.error) for end in ends]}")
        if case.name == "reproduce":
            # Sentences then lie in another order, and were encoded in other company.
            new = {name: content for name, content in new.items() if name.endswith(".md")}
            lacking = new.keys() - _contents(folder / case.output).keys()
            wrong += [f"both: lacks {name}" for name in lacking]
            ended = Child(case.command(), folder).end()
            wrong += [f"both, again: {ended.error}"] if ended.code else []
            shutil.rmtree(folder)
            return wrong
        wrong += [f"both: {one}" for one in self._differences(case, folder, new)]
        shutil.rmtree(folder)
        if case.cached and "--output" in case.arguments:
            folder = self._folder()
            other = [f"2{a}" if a == case.output else a for a in case.command()]
            children = [Child(case.command(), folder), Child(other, folder)]
            ends = [child.end() for child in children]
            if any(end.code for end in ends):
                wrong.append(f"one cache: {[(end.code, end.error) for end in ends]}")
            wrong += [
                f"one cache: {one}"
                for output in (case.output, other[other.index("--output") + 1])
                for one in _unequal(_contents(folder / output), new)
            ]
            again = Child(case.command(), folder).end()
            if again.code:
                wrong.append(f"one cache, again: {again.error}")
            wrong += [f"again: {one}" for one in _unequal(_contents(folder / case.output), new)]
            shutil.rmtree(folder)
        return wrong

    def _whole(self, case: Case) -> tuple[Ended, dict[str, Any]]:
        """An uninterrupted run: how it ended and what it wrote."""
        folder = self._folder()
        for _ in range(2):  # The second is not the first that reads its files.
            shutil.rmtree(folder)
            folder.mkdir()
            ended = Child(case.command(), folder).end()
            if ended.code != 0:
                raise RuntimeError(f"{case.name} ends with {ended.code}: {ended.error}")
        content = _contents(folder / case.output)
        sizes = sorted({path.stat().st_size for path in folder.rglob("*") if path.is_file()})
        self._sizes = [size for size in sizes if size > 64]
        shutil.rmtree(folder)
        return ended, content

    def _old(self, case: Case) -> Path | None:
        """An output of the same command with other arguments, to lie there before."""
        other = {
            "fit vectors": ["--random-state", "5"],
            "fit text": ["--random-state", "5"],
            "encode": ["--max-length", "3"],
            "finetune": ["--random-state", "5"],
        }.get(case.name)
        if other is None:
            return None
        place = self.root / "old" / case.name
        if not place.exists():
            folder = self._folder()
            ended = Child([*case.arguments, *other], folder).end()
            assert ended.code == 0, ended.error
            place.parent.mkdir(exist_ok=True)
            (folder / case.output).rename(place)
            shutil.rmtree(folder)
        return place

    def _planned(self, case: Case, kills: int, ways: Sequence[str], whole: Ended) -> list[Order]:
        """Each end that there is to be."""
        moments = max(1, round(kills * case.kills))
        few = max(2, moments // 4)
        orders = []
        for way, count in (("moment", moments), ("ctrl-c", few)):
            shares = [(n + self.random.random()) / count for n in range(count)]
            orders += [Order(way, share) for share in shares]
        orders += [Order("step", n) for n in _spread(range(1, whole.steps + 1), moments)]
        # In the midst of a file, whichever gets that large first.
        for way in ("write", "full"):
            orders += [Order(way, size // 2) for size in _spread(self._sizes, few)]
        return [order for order in orders if order.way in ways]

    def _carried_out(self, order: Order, case: Case, folder: Path, whole: Ended) -> Ended:
        """Run a command and end it."""
        command = case.command()
        if order.way == "step":
            return Child(command, folder, step=int(order.at)).end()
        if order.way in ("write", "full"):
            return Child(command, folder, size=int(order.at), die=order.way == "write").end()
        child = Child(command, folder)
        if child.wait(order.at * whole.seconds):
            child.send(signal.SIGKILL if order.way == "moment" else signal.SIGINT)
        return child.end()

    def _ended(
        self,
        case: Case,
        end: End,
        ended: Ended,
        folder: Path,
        new: dict[str, Any],
        old: Path | None,
    ) -> None:
        """Look at what is there, run the command again, and look once more."""
        expected = {
            "moment": (-signal.SIGKILL,),
            "step": (-signal.SIGKILL,),
            "write": (-signal.SIGXFSZ,),
            "full": (1,),
            "ctrl-c": (130,),
        }[end.way]
        through = ended.code == 0
        end.landed = "through" if through else _place(ended.last, case.output)
        if not through and ended.code not in expected:
            end.wrong.append(f"exit code {ended.code}: {ended.error[:300]}")
        if end.way in ("ctrl-c", "full") and not through:
            said = ended.error
            starts = "error: interrupted" if end.way == "ctrl-c" else "error: "
            lines = [one for one in said.splitlines() if one]
            if not lines or not lines[-1].startswith(starts) or (end.way == "ctrl-c" and lines[1:]):
                end.wrong.append(f"said {said[:300]!r}")
        place, moved = folder / case.output, folder / f".{case.output}-old.bertflow"
        # Killed between two moves, the old one has a name from which the next process takes it.
        found = _contents(moved if moved.exists() and not place.exists() else place)
        states = {"new": new, "absent": {}} | ({} if old is None else {"old": _contents(old)})
        end.found = next((name for name, one in states.items() if found == one), "half")
        if case.name == "reproduce" and end.found == "half":
            end.found = "part"  # Its output is records: each is whole or not there.
        if end.found == "half" or (end.found == "absent" and end.before == "old"):
            end.wrong.append(f"{end.before} before, {end.found} after")
        end.kept = (
            any(folder.rglob(".*.part/*"))
            or any(folder.glob("cache/*/*"))
            or any(folder.rglob("checkpoint-*"))
            or end.found == "part"
        )
        again = Child(case.command(), folder).end()
        if again.code != 0 or again.error:
            end.wrong.append(f"again: {again.code} {again.error[:300]}")
        end.wrong += self._differences(case, folder, new)

    def _differences(self, case: Case, folder: Path, new: dict[str, Any]) -> list[str]:
        """What is not as after an uninterrupted run, left-overs included."""
        wrong = _unequal(_contents(folder / case.output), new)
        beside = {path.name for path in folder.iterdir()} - {case.output, "cache"}
        hidden = [
            str(path.relative_to(folder))
            for path in folder.rglob("*.bertflow")
            if path.name != ".bertflow"
        ]
        return [*wrong, *(f"left over: {name}" for name in [*sorted(beside), *hidden])]

    def _folder(self) -> Path:
        self._number += 1
        folder = self.root / "runs" / str(self._number)
        folder.mkdir(parents=True)
        return folder


def _place(last: str, output: str) -> str:
    """What a file operation was for."""
    event, _, path = last.partition(" ")
    if event == "begun":
        return "before the first file"
    if ".part" in path or "checkpoint" in path:
        return "checkpoint or part"
    if path.startswith("cache/"):
        return "cache"
    if event.startswith("exchange"):
        return event
    if path.startswith(f".{output}-"):
        return "writing the output"
    if path.startswith("out/"):
        return "records and vectors"
    return f"{event} {path}"


def _contents(place: Path) -> dict[str, Any]:
    """Every file of an output, without what tells the time."""
    if not place.exists():
        return {}
    files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    found: dict[str, Any] = {}
    for path in files:
        name = "" if path == place else path.relative_to(place).as_posix()
        content = path.read_bytes()
        if name.endswith(".lock") or name == "lock":
            continue
        if name.startswith("vectors/") and name.endswith("about.json"):
            content = _timeless(content, {"made"})
        elif place.suffix == ".json" or (name.startswith(KEPT) and name.endswith(".json")):
            content = _timeless(content, TIMES)
        elif name == "finetuning.json" or name.endswith("/finetuning.json"):
            content = _timeless(content, TIMES)
        found[name] = content
    return found


def _timeless(content: bytes, names: set[str]) -> bytes:
    def cut(one: Any) -> Any:
        if isinstance(one, dict):
            return {name: cut(value) for name, value in one.items() if name not in names}
        return [cut(value) for value in one] if isinstance(one, list) else one

    return json.dumps(cut(json.loads(content)), sort_keys=True).encode()


def _unequal(found: dict[str, Any], new: dict[str, Any]) -> list[str]:
    names = [name for name in {**new, **found} if found.get(name) != new.get(name)]
    return [f"not the same bits: {', '.join(sorted(names))}"] if names else []


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    """So many of them, the first and the last included, or all."""
    if len(items) <= count:
        return list(items)
    return [items[n * (len(items) - 1) // max(1, count - 1)] for n in range(count)]


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


def _prepared(root: Path, scale: float) -> None:
    """Write a tiny encoder, sentences, vectors, a task and labelled pairs, in a fork."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _prepare(root, scale)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("the inputs cannot be made")


def _prepare(root: Path, scale: float) -> None:
    import numpy as np
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = {word: row for row, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=32,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(root / "encoder")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=32, mask_token="[MASK]", **names
    ).save_pretrained(root / "encoder")
    draw = np.random.default_rng(0)

    def sentence() -> str:
        return " ".join(draw.choice(WORDS, size=draw.integers(3, 12)))

    (root / "corpus.txt").write_text(
        "".join(f"{sentence()}\n" for _ in range(round(scale * SENTENCES)))
    )
    rows = draw.normal(size=(round(scale * ROWS), WIDTH)) ** 3 + 2
    np.save(root / "x.npy", rows.astype(np.float32))
    task = root / "data" / "STSBenchmark"
    task.mkdir(parents=True)
    for split in ("train", "dev", "test"):
        lines = [
            f"genre\tfile\tyear\t{n}\t{draw.integers(0, 11) / 2}\t{sentence()}\t{sentence()}\n"
            for n in range(60)
        ]
        (task / f"sts-{split}.csv").write_text("".join(lines))
    (root / "data" / "nli").mkdir()
    labels = ("entailment", "neutral", "contradiction")
    for split in ("dev", "test"):
        rows = [
            {"gold_label": labels[n % 3], "sentence1": sentence(), "sentence2": sentence()}
            for n in range(90)
        ]
        (root / "data" / "nli" / f"snli_{split}.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows)
        )


def preload() -> None:
    """Import what the commands import, so that a fork has it."""
    os.environ.update(ALONE)
    import accelerate  # noqa: F401
    import datasets  # noqa: F401

    import bertflow.cli.main
    import bertflow.evaluation
    import bertflow.finetuning.siamese
    import bertflow.paper  # noqa: F401


def table(torture: Torture) -> str:
    """What came of it, as text."""
    lines = ["| command | way | ends | before the end | found | to go on from | wrong |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, way in dict.fromkeys((end.case, end.way) for end in torture.ends):
        ends = [end for end in torture.ends if (end.case, end.way) == (name, way)]
        inside = [end for end in ends if end.landed != "through"]
        found = Counter(end.found for end in inside)
        lines.append(
            f"| {name} | {way} | {len(ends)} | {len(inside)} | "
            f"{', '.join(f'{count} {what}' for what, count in sorted(found.items()))} | "
            f"{sum(end.kept for end in inside)} | {sum(bool(end.wrong) for end in ends)} |"
        )
    for name in dict.fromkeys(end.case for end in torture.ends):
        landed = Counter(end.landed for end in torture.ends if end.case == name)
        places = ", ".join(f"{count} {place}" for place, count in landed.most_common())
        lines.append(f"{name} ({torture.seconds[name]:.2f} s) landed: {places}")
    return "\n".join(lines)


def main() -> int:
    """Torture the command line; 1 if anything was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="random moments a command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="of the inputs' size")
    parser.add_argument("--only", action="append", help="a command, such as encode")
    parser.add_argument("--way", action="append", choices=[*WAYS, "together"])
    parser.add_argument("--no-cache", action="store_true", help="fit and encode without the cache")
    parser.add_argument("--json", type=Path, help="file for all that was found")
    asked = parser.parse_args()
    preload()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        torture = Torture(Path(folder), asked.seed, asked.scale)
        wrong: dict[str, list[str]] = {}
        for case in torture.cases():
            if asked.only and case.name not in asked.only:
                continue
            if asked.no_cache:
                case = Case(case.name, case.arguments, case.output, case.kills, cached=False)
            ways = asked.way or [*WAYS, "together"]
            torture.run(case, asked.kills, [way for way in ways if way != "together"])
            if "together" in ways:
                wrong[f"{case.name}, two at once"] = torture.together(case)
    for end in torture.ends:
        if end.wrong:
            wrong[f"{end.case}, {end.way} at {end.at}, {end.landed}"] = end.wrong
    wrong = {name: what for name, what in wrong.items() if what}
    print(table(torture))
    for name, what in wrong.items():
        print(f"WRONG {name}: {'; '.join(what)}")
    print(f"{len(torture.ends)} ends, {len(wrong)} wrong, {time.monotonic() - began:.0f} s")
    if asked.json:
        content = {"ends": [asdict(end) for end in torture.ends], "wrong": wrong}
        asked.json.write_text(json.dumps({**content, "seconds": torture.seconds}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Damage of files: bytes flipped, cut, doubled and put in, and content made up from a grammar."""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

# What readers stumble over: ends of lines, marks, quotes, numbers, paths, depth and length.
TOKENS: tuple[bytes, ...] = (
    *(b"\0", b"\r\n", b"\r", b"\n", b"\n\n", b"\t", b"\t\t\t", b'"', b'""', b"'", b",", b"\\"),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),
    *(b"\xe2\x80\xa8", b"\xe2\x80\xae", b"\xc2\x85", b"\x1b[2J", b"\x7f", b"\x0b", b"\x0c"),
    *(b"NaN", b"nan", b"Infinity", b"-inf", b"1e999", b"-1", b"0", b"1_0", b"0x10", b"1e-400"),
    *(b"9" * 30, b"9" * 5000, b"-9223372036854775809", b"18446744073709551616", b"3.5"),
    *(b"null", b"true", b"{}", b"[]", b'""', b"\\ud800", b"\\u0000", b"../", b"/etc/passwd"),
    *(b"C:\\x", b"[" * 3000, b'{"a":' * 3000, b"a" * 200_000, b"\xe4\xb8\xad" * 5000),
    *(b"maybe", b"entailment", b"label", b"score", b"sentence1", b"#", b"%s", b"{0}", b"\x80\x04."),
)
MAGIC = (b"PK\x03\x04", b"\x1f\x8b\x08", b"PAR1", b"\x93NUMPY\x01\x00", b"\x89PNG\r\n", b"GGUF")
EXTREMES = (0, 1, 7, 2**8, 2**16 - 1, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1)


def mutated(random: Random, content: bytes, others: list[bytes]) -> bytes:
    """A file's content with one to four damages.

    Args:
        random: Source of all choices.
        content: Whole.
        others: Other content to splice in.
    """
    for _ in range(random.choice([1, 1, 1, 2, 3, 4])):
        content = _within(random, content) or _damaged(random, content, others)
    return content


def _damaged(random: Random, content: bytes, others: list[bytes]) -> bytes:
    """One damage that knows nothing of the form."""
    size = len(content)
    start = random.randrange(size + 1)
    end = min(size, start + random.choice([1, 1, 2, 4, 8, 40, size]))
    lines = content.split(b"\n")
    place = random.randrange(len(lines))
    choice = random.randrange(15)
    if choice < 2 and size:
        at = min(start, size - 1)
        return content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]
    if choice == 2:
        return content[:start]
    if choice == 3:
        return content[:start] + content[end:]
    if choice == 4:
        return content[:end] + content[start:end] * random.choice([1, 2, 50]) + content[end:]
    if choice in (5, 6, 7):
        return (
            content[:start]
            + random.choice(TOKENS)
            + content[end if random.random() < 0.3 else start :]
        )
    if choice == 8:
        number = random.choice(EXTREMES)
        form = random.choice(["<Q", "<I", "<H"])
        packed = struct.pack(form, number % 2 ** (8 * struct.calcsize(form)))
        at = random.choice([0, 8, start])
        return content[:at] + packed + content[at + len(packed) :]
    if choice == 9:
        lines.insert(place, lines[random.randrange(len(lines))])
    elif choice == 10:
        del lines[place]
    elif choice == 11:
        other = random.choice(others)
        return content[:start] + other[random.randrange(len(other) + 1) :]
    elif choice == 12:
        return content.replace(b"\n", random.choice([b"\r\n", b"\r", b"\n\n", b"\0", b""]))
    elif choice == 13:
        return random.choice([b"", random.choice(MAGIC) + content, random.choice(MAGIC)])
    else:
        cells = lines[place].split(b"\t")
        cells[random.randrange(len(cells))] = random.choice(TOKENS)
        lines[place] = b"\t".join(cells)
    return b"\n".join(lines)


def _within(random: Random, content: bytes) -> bytes | None:
    """One damage inside a form that is otherwise kept whole, half of the time."""
    if random.random() < 0.5:
        return None
    with contextlib.suppress(Exception):  # It is not of the form that it begins like.
        if content[:2] == b"\x1f\x8b":
            inner = gzip.decompress(content)
            return gzip.compress(_damaged(random, inner, [inner]), 1, mtime=0)
        if content[:2] == b"PK":
            return _zip(random, content)
        if content[:6] == b"\x93NUMPY":
            return _npy(random, content)
        if content[:1] in b"{[":
            lines = content.split(b"\n")
            if len(lines) > 2 and lines[0][-1:] in b"}]" and lines[0] not in (b"{", b"["):
                place = random.randrange(len(lines) - 1)
                lines[place] = dumped(random, changed(random, json.loads(lines[place])))
                return b"\n".join(lines)
            return dumped(random, changed(random, json.loads(content)))
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        new = dumped(random, changed(random, header))
        return struct.pack("<Q", len(new)) + new + content[8 + length :]
    return None


def changed(random: Random, tree: Any) -> Any:
    """JSON with one of its values replaced, dropped, renamed or doubled."""
    tree = copy.deepcopy(tree)
    holders: list[Any] = [tree] if isinstance(tree, dict | list) else []
    for holder in holders:
        inside = holder.values() if isinstance(holder, dict) else holder
        holders += [part for part in inside if isinstance(part, dict | list)]
    holders = [holder for holder in holders if holder]
    if not holders:
        return value(random)
    holder = random.choice(holders)
    key = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    choice = random.randrange(5)
    if choice == 0:
        del holder[key]
    elif choice == 1 and isinstance(holder, dict):
        holder[random.choice(["..", "/x", "a\nb", "", key + "x", "k" * 1000])] = holder.pop(key)
    elif choice == 2 and isinstance(holder[key], int) and not isinstance(holder[key], bool):
        holder[key] = random.choice([0, -1, holder[key] + 1, *EXTREMES, 10**30])
    else:
        holder[key] = value(random)
    return tree


def value(random: Random, depth: int = 0) -> Any:
    """Any JSON."""
    choice = random.randrange(9 if depth < 3 else 6)
    if choice == 0:
        return random.choice([None, True, False])
    if choice == 1:
        return random.choice([0, 1, -1, 3, *EXTREMES, 10**30])
    if choice == 2:
        return random.choice([0.5, -1.0, 1e-300, 1e300, float("nan"), float("inf")])
    if choice < 6:
        return random.choice(
            [
                "",
                "a",
                "x" * 3000,
                "a\nb",
                "\u2028",
                "\ud800",
                "\x1b[1m",
                "../x",
                "/x",
                "auto",
                "cpu",
            ]
        )
    if choice == 6:
        return [value(random, depth + 1) for _ in range(random.randrange(4))]
    return {random.choice(["a", "b", "format", "type"]): value(random, depth + 1) for _ in range(3)}


def dumped(random: Random, tree: Any) -> bytes:
    """JSON as text, now and then with a key twice."""
    text = json.dumps(tree)
    if isinstance(tree, dict) and tree and random.random() < 0.1:
        name = random.choice(list(tree))
        text = f"{{{json.dumps(name)}: {json.dumps(value(random))}, {text[1:]}"
    return text.encode()


def table(random: Random) -> bytes:
    """Rows of cells from a small pool, of nearly one width."""
    words = [b"A cat", b"dog", b"", b" ", b"2.5", b"0", b"nan", b"entailment", b"neutral", b'"x']
    mark = random.choice([b"\t", b"\t", b",", b" "])
    width = random.randrange(1, 9)
    rows = []
    for _ in range(random.randrange(8)):
        count = width if random.random() < 0.9 else random.randrange(12)
        pool = words if random.random() < 0.9 else TOKENS
        rows.append(mark.join(random.choice(pool) for _ in range(count)))
    return random.choice([b"\n", b"\n", b"\r\n"]).join(rows) + random.choice([b"\n", b""])


def json_text(random: Random) -> bytes:
    """A JSON text, or several as lines."""
    lines = [dumped(random, value(random)) for _ in range(random.choice([1, 1, 2, 5]))]
    return b"\n".join(lines)


def tensors(random: Random) -> bytes:
    """A safetensors file whose header may say anything."""
    header: dict[str, Any] = {}
    for name in random.sample(["mean", "scale", "values", "curve", "weight", "../x"], 3):
        shape = [random.choice([1, 2, 8, *EXTREMES]) for _ in range(random.randrange(3))]
        header[name] = {
            "dtype": random.choice(["F32", "F64", "I64", "BOOL", "F8_E4M3", "X"]),
            "shape": shape,
            "data_offsets": [0, random.choice([0, 8, 64, 2**40])],
        }
    text = dumped(random, header)
    return struct.pack("<Q", len(text) + random.choice([0, 0, 0, 1, -1])) + text + bytes(64)


def noise(random: Random) -> bytes:
    """Bytes without form."""
    return random.randbytes(random.choice([0, 1, 7, 100, 3000]))


GRAMMARS: tuple[Callable[[Random], bytes], ...] = (table, json_text, tensors, noise)


def _zip(random: Random, content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            part = source.read(name)
            if random.random() < 0.5:
                part = _npy(random, part)
            if random.random() < 0.1:
                name = random.choice(["../x.npy", "/x.npy", "cosines.npy", "x"])
            target.writestr(name, part)
    return out.getvalue()


def _npy(random: Random, content: bytes) -> bytes:
    """A .npy whose header says something else of the same bytes."""
    (length,) = struct.unpack("<H", content[8:10])
    header = content[10 : 10 + length].rstrip()
    old, new = random.choice(
        [
            (b"'<f", random.choice([b"'>f", b"'|O", b"'<U", b"'<M", b"'|V", b"'<c", b"'<g"])),
            (b"(", random.choice([b"(-", b"(1, ", b"(" + b"9" * 20, b"(" * 200, b"(True, "])),
            (b",)", random.choice([b",9,9)", b")", b".5,)"])),
            (b"False", random.choice([b"True", b"None", b"__import__('os')"])),
            (b"shape", b"shapes"),
            (b"}", random.choice([b", 'x': 1}", b"", b"}}", b"} #"])),
        ]
    )
    header = header.replace(old, new, 1) + b"\n"
    return content[:8] + struct.pack("<H", len(header) % 2**16) + header + content[10 + length :]

"""What a file is by its first bytes, whatever its name says."""

from __future__ import annotations

# So many bytes are enough to tell.
HEAD = 512
PACKED_WITH = "is packed with {0}; its name must end in {1}"
KINDS = {
    b"version https://git-lfs": "is a git-lfs pointer, not the file; fetch that by: git lfs pull",
    b"/annex/objects/": "is a git-annex pointer, not the file; fetch that by: git annex get",
    b"\x1f\x8b": PACKED_WITH.format("gzip", ".gz"),
    **{b"BZh%d1AY" % level: PACKED_WITH.format("bzip2", ".bz2") for level in range(1, 10)},
    b"\xfd7zXZ\0": PACKED_WITH.format("xz", ".xz"),
    b"\x28\xb5\x2f\xfd": PACKED_WITH.format("zstd", ".zst"),
    b"PK\x03\x04": "is a zip archive, as .xlsx, .docx and .npz are; unpack it or export it as text",
    b"PK\x05\x06": "is an empty zip archive",
    b"7z\xbc\xaf\x27\x1c": "is a 7z archive; unpack it",
    b"PAR1\x15": "is a .parquet file; name it so, or give that as its format",
    b"ARROW1\0\0": "is an Arrow file; write it as .parquet",
    b"\x93NUMPY": "is a .npy file, an array of numpy",
    b"%PDF-": "is a PDF; export its text",
    b"{\\rtf": "is an RTF document; export its text",
    b"\xd0\xcf\x11\xe0": "is an old Office document; export its text",
    b"\x89HDF": "is an HDF5 file",
    b"SQLite format 3\0": "is an SQLite database; export its text",
    b"\xff\xfe\0\0": "is not UTF-8 text but UTF-32; convert it to UTF-8",
    b"\xff\xfe": "is not UTF-8 text but UTF-16; convert it to UTF-8",
    b"\xfe\xff": "is not UTF-8 text but UTF-16; convert it to UTF-8",
    b"<!doctype html": "is a web page; export its text",
    b"<html": "is a web page; export its text",
}
TAR_MARK, TAR_PLACE = b"ustar", 257


def contents(head: bytes) -> str | None:
    """What to say of a file that begins with these bytes; None if it may be what its name says.

    Args:
        head: Its first `HEAD` bytes, or all if it has fewer.

    Example:
        >>> contents(b"%PDF-1.7 ...")
        'is a PDF; export its text'
    """
    if head[TAR_PLACE:].startswith(TAR_MARK):
        return "is a tar archive; unpack it"
    heads = head, head.removeprefix(b"\xef\xbb\xbf").lower()
    found = (said for begin, said in KINDS.items() if any(one.startswith(begin) for one in heads))
    return next(found, None)

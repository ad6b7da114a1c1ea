"""A wheel holds all that the program reads: each file below src/bertflow, and nothing else."""

from __future__ import annotations

from benchmarks.wheel import BESIDES, PACKAGE


def test_every_file_of_the_package_is_python_or_known_to_the_check_of_the_wheel():
    beside = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert beside == BESIDES

"""Ended at any moment: the old output or the new, and the same command goes on to the same bits.

All of it is `make torture`; here are a few ends of each way, in a process that forks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")


def tortured(tmp_path: Path, *options: object) -> dict:
    """Run the harness, which must find nothing wrong: the ends, as it tells them."""
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.torture", "--json", found, "--scale", 0.2]
    done = subprocess.run(
        [str(part) for part in (*command, *options)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=500,
    )
    content = json.loads(found.read_text())
    assert content["wrong"] == {}
    assert done.returncode == 0, done.stdout + done.stderr
    return content["ends"]


@pytest.mark.nightly
def test_killed_at_some_steps_the_old_or_the_new_is_there_and_it_goes_on(tmp_path):
    ends = tortured(tmp_path, "--only", "encode", "--way", "step", "--kills", 4)
    assert [end["way"] for end in ends] == ["step"] * 4
    # The last step is after the output has taken its place.
    assert {end["found"] for end in ends} == {"absent", "old", "new"}
    assert any(end["kept"] for end in ends)


@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fit vectors", "fit text", "encode", "finetune", "reproduce"])
def test_ended_in_every_way_it_goes_on_to_the_same_bits(tmp_path, name):
    ends = tortured(tmp_path, "--only", name, "--kills", 6)
    inside = {end["way"] for end in ends if end["landed"] != "through"}
    # Of moments none may land inside where the machine has become quicker.
    assert {"step", "write", "full"} <= inside


@pytest.mark.torture
@pytest.mark.slow
def test_a_comparison_goes_on_too(tmp_path):
    ends = tortured(tmp_path, "--only", "compare", "--kills", 20, "--way", "moment")
    assert sum(end["kept"] for end in ends) > 1


@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fit text", "encode"])
def test_without_the_cache_it_ends_with_the_same_bits(tmp_path, name):
    ends = tortured(tmp_path, "--only", name, "--no-cache", "--way", "step", "--kills", 6)
    assert any(end["kept"] for end in ends)


# The harness itself.


@pytest.mark.torture
@pytest.mark.slow
def test_the_harness_sees_half_an_output_and_what_is_left_over(tmp_path):
    script = """
import sys
from pathlib import Path
from benchmarks import torture
torture.preload()
from bertflow.encoders import streaming

def half(self, found):
    real(self, found)
    data = Path(self._file.name).read_bytes()
    output = Path(self._file.name).parent / "z.npy"
    output.write_bytes(data[: len(data) // 2])
    torture.shutil.copy(output, output.with_name("forgotten"))

real = streaming._NpyFile.complete
streaming._NpyFile.complete = half
harness = torture.Torture(Path(sys.argv[1]), scale=0.2)
case = next(case for case in harness.cases() if case.name == "encode")
harness.run(case, 40, ["step"])
print([end.wrong for end in harness.ends])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert "before, half after" in done.stdout, done.stderr
    assert "left over: forgotten" in done.stdout

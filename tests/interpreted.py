"""Triton kernels without a GPU run in Triton's interpreter. It has to be chosen before Triton is imported, so a file of
tests of kernels has one test that runs the file again in a process of its own."""

import os
import subprocess
import sys

import pytest

from anydepth.nn.packed_attention import available

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
on_gpu = pytest.mark.skipif(INTERPRETED or not available(), reason="needs a GPU")
without_gpu = pytest.mark.skipif(
    INTERPRETED or available(), reason="the kernels are tested on the GPU, or already interpreted"
)
_skip = pytest.mark.skipif(not INTERPRETED, reason="run by test_kernels_in_the_interpreter")


def interpreted(test):
    return _skip(pytest.mark.usefixtures("_mended_interpreter")(test))


def run_interpreted(file: str) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", file]
    run = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout

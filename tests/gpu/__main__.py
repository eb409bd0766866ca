# SPDX-License-Identifier: MIT
"""What only GPUs show, in one run: python -m tests.gpu. Prints as it goes, and writes gpu-report.txt to send to us."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

from tests.gpu.facts import facts, missing
from tests.house.pages import blocks

REPORT = Path("gpu-report.txt")
LIMIT = 1800  # seconds for a step
PYTEST = ("pytest", "-q", "--backend=nccl", "--require-nccl")
WRAPPERS = ("tests/core/test_wrappers.py", "tests/core/test_gradient_table.py", "tests/house/test_recipes.py")
STREAMS = ("tests/nccl/test_streams.py", "tests/nccl/test_graphs.py", "tests/nccl/test_subgroups.py")
DEVICES = ("tests/nccl/test_wrong_device.py", "tests/nccl/test_unused_parameters.py")


class Step(NamedTuple):
    """A command, as arguments of `python -m`."""

    title: str
    command: tuple[str, ...]


def steps(script: Path) -> list[Step]:
    """In the order in which they run: what is short and tells most comes first."""
    gpus = torch.cuda.device_count()
    sizes = [f"--world-size={size}" for size in sorted({2, gpus})]
    launch = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script))
    alone = [f"--ignore={path}" for path in ("tests/nccl", "tests/emulated", *WRAPPERS)]
    return [
        Step("README's script", launch),
        Step("random calls on nccl, nccl-legacy and a mixed group", (*PYTEST, "tests/nccl/test_stress.py")),
        Step(f"contents on 2 and {gpus} ranks", (*PYTEST, "--suite=core", *sizes, "tests/adapters/test_matrix.py")),
        Step("blocks of very different length on six ranks", (*PYTEST, "tests/core/test_devices.py")),
        Step("the core's other tests", (*PYTEST, "--suite=core", *alone)),
        Step("DDP, FSDP1, FSDP2, no_sync, recipes", (*PYTEST, "--suite=core", *WRAPPERS)),
        Step("side streams, CUDA graphs, groups", (*PYTEST, *STREAMS)),
        Step("CPU tensors, unused parameters", (*PYTEST, *DEVICES)),
        Step("benchmark, with the crossing of padding and real rows", ("bench", "--quick")),
    ]


class Report:
    """Lines for the terminal and for the file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def __call__(self, line: str) -> None:
        print(line, flush=True)
        self._file.write(f"{line}\n")
        self._file.flush()


def run(step: Step, report: Report) -> bool:
    """One step, its output in the report; whether it passed."""
    report(f"\n=== {step.title}\n$ python -m {' '.join(step.command)}")
    start = time.monotonic()
    command = ["timeout", "--signal=INT", "--kill-after=60", str(LIMIT), sys.executable, "-m", *step.command]
    search = os.pathsep.join(["tools", os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=variables
    ) as process:
        for line in process.stdout or ():
            report(line.rstrip("\n"))
    report(f"--- {'passed' if process.returncode == 0 else 'FAILED'} after {time.monotonic() - start:.0f} s")
    return process.returncode == 0


def main() -> int:
    report = Report(REPORT)
    report(facts())
    reason = missing()
    if reason:
        report(reason)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(blocks("README.md")[0])
        failed = [step.title for step in steps(script) if not run(step, report)]
    report(f"\nfailed: {', '.join(failed) or 'nothing'}. Please send us {REPORT}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

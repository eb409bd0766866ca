# SPDX-License-Identifier: MIT
"""Every framework page, saved and run as it is on 2 and on 3 ranks, and with other settings; and what goes wrong.

A page prints how far its weights are from those of one process. That it can be far is shown by the traps at the end.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.pages import ROOT, blocks

DOCS = "shared/distributed/docs"
WORLDS = [2, 3]
PAGES = [
    "accelerate",
    "fsdp2",
    "gradcache",
    "lightning",
    "open-clip",
    "pytorch-metric-learning",
    "sentence-transformers",
    "torchmetrics",
    "transformers",
]
MOST = 1e-4  # of what training changed: float32


def under_torchrun(world: int, words: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", *words]
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HOME": str(folder)}
    environment = {**os.environ, **quiet, "PYTHONPATH": str(ROOT)}
    for _ in range(3):
        done = subprocess.run(
            launch, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
        if "terminate called without an active exception" not in done.stderr:  # see unequal-batches.md
            break
    return done


def run_page(page: str, world: int, folder: Path, *changes: tuple[str, str]) -> "subprocess.CompletedProcess[str]":
    """The page's one block of Python, saved as `page.py`; with these parts of its text replaced."""
    (script,) = blocks(f"{DOCS}/{page}.md")
    for right, other in changes:
        assert script.count(right) == 1, right
        script = script.replace(right, other)
    (folder / "page.py").write_text(script)
    return under_torchrun(world, ["page.py"], folder)


def apart(done: "subprocess.CompletedProcess[str]") -> list[float]:
    """How far each result is from that of one process, as the page prints it."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"(\S+) (?:of what training changed|apart)$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return [float(number) for number in found]


def means(done: "subprocess.CompletedProcess[str]") -> list[tuple[float, float]]:
    """Every number of the ranks, with that of one process."""
    found = re.findall(r"\d ranks (\S+), one process (\S+)$", done.stdout, re.MULTILINE)
    return [(float(ours), float(alone)) for ours, alone in found]


# ------------------------------------------------------------------ as pasted


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("page", PAGES)
def test_page_as_pasted(page: str, world: int, tmp_path: Path) -> None:
    """It ends with the weights of one process that sees every row, and prints the same numbers."""
    done = run_page(page, world, tmp_path)
    assert max(apart(done)) < MOST
    assert means(done)
    for ours, alone in means(done):
        assert ours == pytest.approx(alone, rel=1e-5)
    if world == 2:
        assert shown(page) == printed(done)


def shown(page: str) -> list[str]:
    """The lines that the page shows, without numbers that depend on the machine."""
    (console,) = blocks(f"{DOCS}/{page}.md", "console")
    return [re.sub(r"[\d.]+(e[+-]\d+)?", "#", line) for line in console.splitlines()[1:]]


def printed(done: "subprocess.CompletedProcess[str]") -> list[str]:
    own = [line for line in done.stdout.splitlines() if re.search(r"\d ranks | of what |apart$|^evaluated", line)]
    return [re.sub(r"[\d.]+(e[+-]\d+)?", "#", line) for line in own]


def test_every_family_of_models_trains_with_empty_batches(tmp_path: Path) -> None:
    """Under DDP on 3 ranks, with fewer batches on one and none on another; in float64."""
    from tests.frameworks.families import FAMILIES

    done = under_torchrun(3, ["-m", "tests.frameworks.families_on_ranks"], tmp_path)
    assert len(apart(done)) == len(FAMILIES) >= 31
    assert max(apart(done)) < 1e-6


def test_most_families_raise_without() -> None:
    """The reason for `allow_no_rows`: which of them take 0 rows by themselves."""
    from tests.frameworks.families import FAMILIES, inputs_of, model_of

    refuse = set()
    for family in FAMILIES:
        try:
            model_of(family)(**inputs_of(family, 0))
        except RuntimeError:
            refuse.add(family)
    assert set(FAMILIES) - refuse == {"Mamba", "ResNet", "ConvNext"}


# ------------------------------------------------------------------ with other settings

LIGHTNING = "EPOCHS, ACCUMULATE, CLIP, WORKERS, PRECISION = 2, 1, None, 0,"
ACCELERATE = "EPOCHS, ACCUMULATE, CLIP, WORKERS, SKIP = 2, 2, None, 0, 0"
TRAINER = "EPOCHS, ACCUMULATE, CLIP, WORKERS = 2, 2, 0.0, 0"
SENTENCES = "EPOCHS, ACCUMULATE, CLIP, WORKERS = 2, 1, 0.0, 0"


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("page", "before", "after"),
    [
        ("lightning", LIGHTNING, LIGHTNING.replace("2, 1, None, 0", "3, 2, 0.1, 2")),
        ("accelerate", ACCELERATE, ACCELERATE.replace("2, 2, None, 0, 0", "3, 3, 0.1, 2, 1")),
        ("transformers", TRAINER, TRAINER.replace("2, 2, 0.0, 0", "3, 3, 0.1, 2")),
        ("sentence-transformers", SENTENCES, SENTENCES.replace("2, 1, 0.0, 0", "3, 2, 0.1, 2")),
        ("open-clip", "EPOCHS, ACCUMULATE, CLIP = 2, 1, None", "EPOCHS, ACCUMULATE, CLIP = 2, 3, 0.1"),
        ("fsdp2", "EPOCHS, CLIP = 2, None", "EPOCHS, CLIP = 3, 0.1"),
    ],
    ids=lambda value: value if value in PAGES else "",
)
def test_other_settings(page: str, before: str, after: str, world: int, tmp_path: Path) -> None:
    """Accumulation, clipping, workers, more epochs, skipped batches: what the page says was tried."""
    assert max(apart(run_page(page, world, tmp_path, (before, after)))) < MOST


def test_lightning_in_mixed_precision(tmp_path: Path) -> None:
    """To two digits, compared with float32."""
    assert max(apart(run_page("lightning", 2, tmp_path, ('"32-true"', '"bf16-mixed"')))) < 0.05


RESUMED = """trainer.train()
trainer.model_wrapped = trainer.model
trainer.accelerator.free_memory()
trainer = PairsTrainer(allow_no_rows(Pairs()), arguments, train_dataset=dataset, eval_dataset=dataset)
trainer.loss_is_scaled_for_ga = False
trainer.train(resume_from_checkpoint="trained/checkpoint-SAVED")
"""


@pytest.mark.parametrize("world", WORLDS)
def test_trainer_resumes_in_the_middle_of_an_epoch(world: int, tmp_path: Path) -> None:
    """With fresh weights, from what was saved in it. An epoch has 3 updates on two ranks, and 2 on three."""
    saved = "2" if world == 2 else "3"
    changes = [
        (TRAINER, TRAINER.replace("2, 2, 0.0, 0", "3, 1, 0.0, 0")),
        ('save_strategy="no"', f'save_strategy="steps", save_steps={saved}'),
        ("trainer.train()\n", RESUMED.replace("SAVED", saved)),
    ]
    assert max(apart(run_page("transformers", world, tmp_path, *changes))) < MOST


# ------------------------------------------------------------------ the traps


@pytest.mark.parametrize(
    ("page", "right", "wrong"),
    [
        ("accelerate", "even_batches=False", "even_batches=True"),
        ("transformers", "settings.even_batches = False", "settings.even_batches = True"),
        ("transformers", "trainer.loss_is_scaled_for_ga = False", "pass"),
        ("sentence-transformers", "arguments.dataloader_drop_last = False", "assert arguments.dataloader_drop_last"),
        ("sentence-transformers", "+ sizes.start", "+ sizes.rank * len(queries) % sizes.total"),
        ("gradcache", "torch.set_rng_state(states[i])", "pass"),
        (
            "pytorch-metric-learning",
            "all_gather((embeddings, labels, mask))",
            "all_gather((embeddings, labels, mask), grad='local')",
        ),
        ("lightning", "Subset(dataset, own_rows(rank, world))", "dataset"),
    ],
    ids=lambda value: value if value in PAGES else "",
)
def test_without_a_line_the_weights_are_wrong(page: str, right: str, wrong: str, tmp_path: Path) -> None:
    """And nothing complains; `until_all_done` warns of rows that nobody divided."""
    world = 3 if "sizes.rank" in wrong else 2  # on two, only rank 0 has rows in the last step
    done = run_page(page, world, tmp_path, (right, wrong))
    if page == "lightning":
        assert done.stderr.count("2 ranks begin with the same batch of the same dataset") >= 2
    else:
        assert max(apart(done)) > 1e-3


def test_lightnings_logged_means_with_another_batch_size(tmp_path: Path) -> None:
    """With this rank's rows in place of `sizes.total`."""
    done = run_page("lightning", 2, tmp_path, ("batch_size=sizes.total", "batch_size=len(queries)"))
    assert all(abs(ours - alone) > 0.01 for ours, alone in means(done))
    assert max(apart(done)) < MOST


STREAM = """DataLoader(Stream(), batch_size=4, num_workers=WORKERS)"""
CLASS = """class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(dataset)


accelerator = Accelerator"""


@pytest.mark.parametrize("dispatch", [False, True])
def test_accelerate_repeats_the_rows_of_a_stream(dispatch: bool, tmp_path: Path) -> None:
    """`even_batches=False` or not: `until_all_done` raises, on every rank."""
    loader = "DataLoader(dataset, batch_size=4, num_workers=WORKERS)"
    changes = [(loader + ")", STREAM + ")"), ("accelerator = Accelerator", CLASS)]
    if dispatch:
        changes.append(("even_batches=False", "even_batches=False, dispatch_batches=True"))
    else:
        changes.append(("even_batches=False", "even_batches=False, dispatch_batches=False"))
    done = run_page("accelerate", 2, tmp_path, *changes)
    assert done.returncode != 0
    assert "accelerate repeats rows of an IterableDataset" in done.stderr


def test_the_trainer_repeats_the_rows_of_a_stream(tmp_path: Path) -> None:
    """Its loader is accelerate's: `until_all_done` raises, on every rank."""
    stream = """class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(dataset)


arguments = TrainingArguments(
    max_steps=4,"""
    changes = [("arguments = TrainingArguments(", stream), ("train_dataset=dataset", "train_dataset=Stream()")]
    done = run_page("transformers", 2, tmp_path, *changes)
    assert done.returncode != 0
    assert "accelerate repeats rows of an IterableDataset" in done.stderr


FABRIC = """
import lightning
import torch
from torch.utils.data import DataLoader, Subset

from shared_distributed import all_gather, until_all_done

fabric = lightning.Fabric(accelerator="cpu", strategy="ddp", devices=2)
fabric.launch()
data = torch.arange(5)
dealt = fabric.setup_dataloaders(DataLoader(data, batch_size=2))
own = DataLoader(Subset(data, range(fabric.global_rank, 5, 2)), batch_size=2)
own = fabric.setup_dataloaders(own, use_distributed_sampler=False)
seen = [sorted(torch.cat([all_gather(rows)[0] for rows in until_all_done(loader)]).tolist()) for loader in (dealt, own)]
if fabric.global_rank == 0:
    print("repeated", len(seen[0]), "own", seen[1])
"""


def test_fabric_repeats_rows(tmp_path: Path) -> None:
    """Of 5 it makes 6; with the switch off and own rows each is seen once."""
    (tmp_path / "page.py").write_text(FABRIC)
    done = under_torchrun(2, ["page.py"], tmp_path)
    assert "repeated 6 own [0, 1, 2, 3, 4]" in done.stdout, done.stdout + done.stderr

# SPDX-License-Identifier: MIT
"""plan: every call site and what it becomes in the core, and the call sites that deserve a look."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.migrate.risks import risks_of_copy
from shared_distributed_tools.repo.tree import Tree
from shared_distributed_tools.repo.uses import Use, find_uses
from tests.downstream.commands import done, moved, refused, run
from tests.downstream.projects import EDITED, PROJECTS
from tests.downstream.trees import COPY, commit, edit, package, shell, write_files

pytestmark = pytest.mark.usefixtures("known")
MODULE = "from pkg.distributed import AllGather\n"
FUNCTION = "from pkg.distributed import all_gather, get_is_distributed, all_gather_variable_dim\n"


def uses_of(folder: Path, adapter: str, code: str) -> list[Use]:
    """The uses of a copy in one file of a package."""
    return find_uses(Tree(package(folder, code)), COPY, ADAPTERS[adapter].api)


# ------------------------------------------------------------------ what deserves a look

GATHERED = "x, _ = all_gather(x, 0, None)"


def body(*lines: str, arguments: str = "x") -> str:
    """A function that may gather."""
    return f"{FUNCTION}def f({arguments}):\n" + "".join(f"    {line}\n" for line in lines)


# rule -> adapter, code that it points at, code that it does not
CASES: dict[str, tuple[str, list[str], list[str]]] = {
    "pair-as-tensor": (
        "mirasol",
        [
            body("x = all_gather(x, 0, None)", "return x @ x.t()"),
            body("return all_gather(x, 0, None).mean()"),
            body("return 2 * all_gather_variable_dim(x)"),
        ],
        [
            body(GATHERED, "return x"),
            body("return all_gather(x, 0, None)[0]"),
            body("pair = all_gather(x, 0, None)", "return pair[0]"),
            body("pair = all_gather(x, 0, None)", "x, sizes = pair"),
        ],
    ),
    "which-gradient": (
        "musiclm",
        [f"{MODULE}g = AllGather(1)\n", f"{MODULE}g = AllGather(1, all_reduce_grads = True)\n"],
        [body("return all_gather_variable_dim(x)")],
    ),
    "local-on-gathered": (
        "mirasol",
        [
            body(GATHERED, "return x[mask]", arguments="x, mask"),
            body(GATHERED, "y = x @ x.t()", "return loss(y, text_labels)", arguments="x, text_labels"),
            body("b = x.shape[0]", GATHERED, "eye = torch.eye(b)", "return x.masked_fill(eye, 0)"),
            body("b = len(x)", GATHERED, "return loss(x, torch.arange(b))"),
            body("index = torch.arange(x.size(0))", GATHERED, "return x[index]"),
            body(GATHERED, "return loss(x, torch.arange(batch_size))", arguments="x, batch_size"),
            body("b = x.shape[0]", GATHERED, "return x[dist.get_rank() * b]"),
            body(GATHERED, "start = batch_size * self.rank", "return x[start:]", arguments="self, x, batch_size"),
            body("start = rank * y.shape[0]", GATHERED, "return x[start:]", arguments="x, y, rank"),
        ],
        [
            body(GATHERED, "mask, _ = all_gather(mask, 0, s)", "return x[mask]", arguments="x, mask, s"),
            body("x = x[mask]", GATHERED, "return x", arguments="x, mask"),
            body(GATHERED, "labels = torch.arange(len(x))", "return loss(x, labels)"),
            body(GATHERED, "return x[masked_rows]", arguments="x, masked_rows"),
            body("b = len(x)", GATHERED, "b = x.shape[0]", "return x.masked_fill(torch.eye(b), 0)"),
            body("b = len(x)", GATHERED, "return x + b, torch.arange(3)"),
            body(GATHERED, "return x * dist.get_rank()"),
            body(GATHERED, "return x, mask", arguments="x, mask"),
            # counted again, from the sizes of all ranks
            body(
                *("batch, device = y.shape[0], y.device", "if z:", "    x, sizes = all_gather(x, 0, None)"),
                *("    batch = sizes.sum().item()", "mask = ~torch.eye(batch, device = device)", "return x[mask]"),
                arguments="x, y, z",
            ),
            # a target of a loop, of `with` and of a comprehension over gathered rows has gathered rows
            body(GATHERED, "for masks, x in loader(x):", "    y = x[masks]", arguments="x, masks"),
            body(GATHERED, "with opened(x) as masks:", "    y = x[masks]", arguments="x, masks"),
            body(GATHERED, "return [x[mask] for mask in loader(x)]", arguments="x, mask"),
            body(GATHERED, "mask: object = x > 0", "return x[mask]", arguments="x, mask"),
        ],
    ),
    "random-branch": (
        "mirasol",
        [
            body("if random() < 0.5:", f"    {GATHERED}"),
            body("flip = torch.rand(()) < 0.5", "if flip and x:", f"    {GATHERED}"),
            body("if random.random() < 0.5:", "    return x", GATHERED),
            body("if x:", "    flip = random.random()", "    if flip < 0.5:", f"        {GATHERED}"),
        ],
        [
            body("if get_is_distributed():", f"    {GATHERED}", "return x + torch.rand(3)"),
            body(GATHERED, "if random() < 0.5:", "    return x"),
            body("flip = torch.rand(())", "dist.broadcast(flip, 0)", "if flip < 0.5:", f"    {GATHERED}"),
            body("flip = broadcast(torch.rand(()))", "if flip < 0.5:", f"    {GATHERED}"),
            body("if all_gather(x, 0, None)[0].sum() < random():", "    return x"),
        ],
    ),
}


@pytest.mark.parametrize("rule", CASES)
def test_every_rule_points_at_its_mistake_and_at_nothing_else(tmp_path: Path, rule: str) -> None:
    """Positives and negatives for each rule."""
    adapter, wrong, right = CASES[rule]
    for number, code in enumerate([*wrong, *right]):
        uses = uses_of(tmp_path / str(number), adapter, code)
        found = [risk for risk in risks_of_copy(uses, ADAPTERS[adapter], is_original=True) if risk.rule == rule]
        assert bool(found) == (code in wrong), code


@pytest.mark.parametrize(
    ("adapter", "code", "is_original", "expected"),
    [
        ("musiclm", MODULE + "AllGather(1)", True, "`AllGather(1, all_reduce_grads=True)`;"),
        ("st-moe", MODULE + "AllGather()", True, "`AllGather(all_reduce_grads=True)`, once the file is vendored;"),
        ("st-moe", MODULE + "AllGather()", False, "`AllGather(all_reduce_grads=True)`;"),
        ("mirasol", FUNCTION + "all_gather(x, 0, s)", False, "`all_gather(x, 0, s, all_reduce_grads=True)`;"),
        ("mirasol", FUNCTION + "all_gather(x, 0, s, False)", False, "`all_gather(x, 0, s, all_reduce_grads=True)`;"),
        ("mirasol", FUNCTION + "all_gather(x, 0, s, False)", False, "if the loss is multiplied by world_size"),
        ("mirasol", FUNCTION + "all_gather(x, 0, s, True)", False, "summed gradient: right with DDP"),
        ("mirasol", body("flip = torch.rand(())", "", "if flip < 0.5:", f"    {GATHERED}"), True, "rank, in line 3:"),
    ],
)
def test_a_risk_names_the_place_and_what_to_write(
    tmp_path: Path, adapter: str, code: str, is_original: bool, expected: str
) -> None:
    """The code for the summed gradient at that very place, at the stage the project is at; the line of a draw."""
    found = risks_of_copy(uses_of(tmp_path, adapter, code + "\n"), ADAPTERS[adapter], is_original)
    (text,) = [risk.text for risk in found if expected in risk.text]
    assert ("summed" in expected) != ("world_size" in text or "broadcast" in text)


def test_the_advice_fits(tmp_path: Path) -> None:
    """What counts rows is counted again; what has rows can be gathered too."""
    said = {}
    for name, code in (
        ("eye", body("eye = torch.eye(len(x))", GATHERED, "return x * eye")),
        ("mask", body(GATHERED, "return x[mask]", arguments="x, mask")),
    ):
        risks = risks_of_copy(uses_of(tmp_path / name, "mirasol", code), ADAPTERS["mirasol"], is_original=True)
        (said[name],) = [risk.text for risk in risks if risk.rule == "local-on-gathered"]
    assert "count the gathered rows, `x.shape[0]` or sum(sizes)" in said["eye"]
    assert "gather it too" in said["mask"]
    assert "gather it too" not in said["eye"]


# ------------------------------------------------------------------ the command


@pytest.mark.parametrize("name", PROJECTS)
def test_the_plan_lists_every_use(tmp_path: Path, name: str) -> None:
    """As JSON: each site with its line and what it becomes; the risks that the project is known to have."""
    project = PROJECTS[name]
    plan = json.loads(done("plan", project.make(tmp_path, name), "--json"))
    facts = (plan["adapter"], plan["copy"], plan["stage"], plan["kind"])
    assert facts == (project.adapter, project.copy, "original", "exact")
    for site in plan["sites"]:
        assert site["text"] == project.files[site["path"]].splitlines()[site["line"] - 1].strip()
    kinds = [site["kind"] for site in plan["sites"]]
    assert kinds.count("import") == 1, "one import statement is one line"
    rules = {risk["rule"] for risk in plan["risks"]}
    assert ("pair-as-tensor" in rules) == (name == "mirasol")
    assert "which-gradient" in rules
    assert all(plan["files"].values()), "each can move to the core"
    text = plan["pull_request"]
    assert f"Replace {project.copy}" in text
    assert ("not fixed: mirasol_pytorch/fused.py:6: pair-as-tensor" in text) == (name == "mirasol")
    assert f"{len(project.files[project.copy].splitlines())} lines become" in text


def test_the_plan_for_people(tmp_path: Path) -> None:
    """Files and lines, before and after, edits of the copy, the stages ahead, what to look at, what is not read."""
    repo = EDITED.make(tmp_path, "edited")
    result = run("plan", write_files(repo, {"spear_tts_pytorch/broken.py": "from .distributed import (\n"}))
    output = result.output
    assert result.exit_code == 1, "migrate refuses an edited copy"
    assert "for a pull request" not in output
    for text in (
        "spear_tts_pytorch/distributed.py: adapter spear-tts, edited; at original",
        "differs from the original: rank_of_rows: extra",
        "  vendored: ",
        "  package: ",
        "  core: ",
        "spear_tts_pytorch/align.py:11",
        "all_gather(mask, 0, sizes = batch_sizes if is_distributed() else None, grad = 'local')",
        "spear_tts_pytorch/align.py:9: which-gradient",
        "spear_tts_pytorch/broken.py: does not parse",  # it may use the copy
        "`adapters migrate` would refuse this:",
        "rank_of_rows: extra",
    ):
        assert text in output, output


def test_a_plan_shows_the_stages_ahead(tmp_path: Path) -> None:
    """Fewer at each; on the core nothing is left."""
    repo = PROJECTS["mirasol"].make(tmp_path, "mirasol")
    for ahead, stage in ((3, "vendored"), (2, "package"), (1, "")):
        output = done("plan", repo)
        assert sum(output.count(f"\n  {one}: ") for one in ("vendored", "package", "core")) == ahead
        moved(repo, *([stage] if stage else []))
    (repo / "mirasol_pytorch/distributed.py").unlink()
    (repo / "mirasol_pytorch/fused.py").write_text("from shared_distributed import all_gather\n")
    output = done("plan", repo)
    assert "nothing is left to move" in output
    assert "which-gradient" not in output
    (repo / "mirasol_pytorch/fused.py").write_text(
        "from shared_distributed import AllGather\nAllGather(grad='local')\n"
    )
    assert "fused.py:2: which-gradient" in done("plan", repo)


def in_the_copy(old: str, new: str) -> Callable[[Path], None]:
    return lambda repo: edit(repo / PROJECTS["spear-tts"].copy, old, new)


IN_THE_WAY: list[tuple[Callable[[Path], object], str]] = [
    (in_the_copy("int(sizes.max())", "max(sizes.tolist())"), "is not the original"),
    (lambda repo: (repo / "spear_tts_pytorch/more.py").write_text("from .distributed import own_rows\n"), "own_rows"),
    (lambda repo: shell(repo, "git update-index --skip-worktree spear_tts_pytorch/distributed.py"), "skip-worktree"),
    (lambda repo: shell(repo, "git rm -q --cached spear_tts_pytorch/distributed.py"), "that are not committed"),
    (lambda repo: shell(repo, "git rev-parse HEAD > .git/MERGE_HEAD"), "a merge is under way"),
    (lambda repo: shell(repo, "rm -rf .git"), "is in no git repository"),
]


@pytest.mark.parametrize(("spoil", "why"), IN_THE_WAY)
def test_a_plan_offers_nothing_that_migrate_refuses(tmp_path: Path, spoil: Callable[[Path], object], why: str) -> None:
    """It asks the same questions: the reason is there, the exit code is 1, and there is no text of a pull request."""
    repo = PROJECTS["spear-tts"].make(tmp_path, "repo")
    spoil(repo)
    if (repo / ".git").is_dir() and "original" in why:
        commit(repo)
    result = run("plan", repo, "--json")
    plan = json.loads(result.stdout)
    assert (result.exit_code, plan["pull_request"]) == (1, "")
    assert why in "\n".join(plan["refused"])
    assert refused(run("migrate", repo, "--to", "vendored"), why)
    assert "for a pull request" not in run("plan", repo).output


def test_a_definition_that_was_changed_is_not_called_unchanged(tmp_path: Path) -> None:
    """Its uses are left to a person, and the refusal lists them: they may break."""
    project = PROJECTS["st-moe"]
    repo = project.make(tmp_path, "repo")
    edit(repo / project.copy, "def split_by_rank(x):", "def split_by_rank(x):\n    x = tuple(x)")
    commit(repo)
    plan = json.loads(run("plan", repo, "--json").stdout)
    (site,) = [site for site in plan["sites"] if site["name"] == "split_by_rank"]
    assert (site["core"].startswith("by hand: what your copy does"), plan["files"]) == (True, {project.user: False})
    place = f"{project.user}:{site['line']} uses split_by_rank, and may break"
    assert place in run("plan", repo).output
    assert refused(run("migrate", repo, "--to", "vendored"), place)


def test_a_copy_that_nothing_uses_is_said_to_be_so(tmp_path: Path) -> None:
    """And moving to the core has nothing to move."""
    project = PROJECTS["spear-tts"]
    repo = project.make(tmp_path, "repo")
    (repo / project.user).write_text("")
    commit(repo)
    assert f"nothing in this repo uses {project.copy}" in done("plan", repo)
    moved(repo, "package")
    assert refused(run("migrate", repo, "--to", "core"), "nothing in this repo uses")


@pytest.mark.parametrize("name", PROJECTS)
def test_known_bugs_are_not_forgotten_on_the_core(tmp_path: Path, name: str) -> None:
    """The code is as it was: what deserved a look before deserves it there too, at the same lines."""
    project = PROJECTS[name]
    repo = project.make(tmp_path, name)
    if name == "spear-tts":
        edit(repo / project.user, "        mask, _ ", "        if random() < 0.5: mask, _ ")
        edit(repo / project.user, "        return ", "        source = source[labels]\n        return ")
        edit(repo / project.user, "source, target, mask", "source, target, mask, labels")
    commit(repo)
    found = []
    for stage in ("", "core"):
        moved(repo, *([stage] if stage else []))
        risks = json.loads(run("plan", repo, "--json").stdout)["risks"]
        found.append({(risk["line"], risk["rule"]) for risk in risks if "summed" not in risk["text"]})
    assert found[0] == found[1]
    assert found[0]

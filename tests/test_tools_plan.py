# SPDX-License-Identifier: MIT
"""Call sites: where a tree uses its copy, what each place becomes in the core, and which ones deserve a look."""

import json
import re
import textwrap
from pathlib import Path

import pytest

from downstream.commands import migrate, moved, run
from downstream.projects import INLINED, PROJECTS, known_variants
from downstream.trees import write_files
from shared_distributed_tools.catalog import adapter_named
from shared_distributed_tools.migration.judge import judge
from shared_distributed_tools.migration.rewrite import rewrite
from shared_distributed_tools.migration.risks import RULES, find_risks
from shared_distributed_tools.migration.sites import Site, find_uses
from shared_distributed_tools.migration.tree import SourceTree

NAMES = ("AllGather", "all_gather", "get_is_distributed")


def package(folder: Path, code: str, **others: str) -> Path:
    """A package `pkg` with a copy, and one file that uses it."""
    files = {f"pkg/{name}.py": text for name, text in others.items()}
    return write_files(
        folder, {"pkg/__init__.py": "", "pkg/distributed.py": "", "pkg/use.py": textwrap.dedent(code), **files}
    )


def find_sites(folder: Path, copy: str = "pkg/distributed.py") -> list[Site]:
    return [use.site for use in find_uses(SourceTree(folder), copy, NAMES)]


def kinds(sites: list[Site]) -> list[tuple[int, str, str]]:
    return [(site.line, site.kind, site.name) for site in sites]


# ------------------------------------------------------------------ where


@pytest.mark.parametrize(
    ("statement", "called"),
    [
        ("from pkg.distributed import all_gather", "all_gather"),
        ("from .distributed import all_gather", "all_gather"),
        ("from .distributed import all_gather as ag", "ag"),
        ("from pkg import distributed", "distributed.all_gather"),
        ("from . import distributed as d", "d.all_gather"),
        ("import pkg.distributed", "pkg.distributed.all_gather"),
        ("import pkg.distributed as d", "d.all_gather"),
        ("from .distributed import *", "all_gather"),
    ],
)
def test_every_way_to_import_is_followed(tmp_path: Path, statement: str, called: str) -> None:
    """Absolute, relative, renamed, through the module, by star: the import and the call are found."""
    package(tmp_path, f"{statement}\nx = {called}(x, 0, None)\n")
    first, second = find_sites(tmp_path)
    assert (first.kind, first.path, first.line) == ("import", "pkg/use.py", 1)
    assert second == Site("pkg/use.py", 2, "call", "all_gather", f"x = {called}(x, 0, None)")


@pytest.mark.parametrize(
    "code",
    [
        "import torch.distributed as distributed\ndistributed.all_gather(x)\n",
        "from .other import all_gather\nall_gather(x)\n",
        "from ..distributed import all_gather\nall_gather(x)\n",
        "from . import distributed\nimport torch.distributed as distributed\ndistributed.all_gather(x)\n",
        "def all_gather(x): ...\nall_gather(x)\n",
    ],
)
def test_others_of_the_same_name_are_not_sites(tmp_path: Path, code: str) -> None:
    """The module of torch, another file's function: no call is reported."""
    package(tmp_path, code)
    assert [site for site in find_sites(tmp_path) if site.kind != "import"] == []


def test_names_follow_pythons_scopes(tmp_path: Path) -> None:
    """A parameter hides an import; an import in a function is that function's; a class body is not a method's scope."""
    package(
        tmp_path,
        """\
        from .distributed import all_gather
        def hidden(all_gather): return all_gather(1)
        def default(f = all_gather): return [all_gather(y) for y in f]
        def late():
            from .distributed import AllGather as Gather
            return Gather(0)
        class Gather:
            all_gather = None
            def method(self): return all_gather(2)
        Gather(3)
        """,
    )
    found = kinds(find_sites(tmp_path))
    assert found == [
        (1, "import", "all_gather"),
        (3, "reference", "all_gather"),
        (3, "call", "all_gather"),
        (5, "import", "AllGather"),
        (6, "build", "AllGather"),
        (9, "call", "all_gather"),
    ]


def test_objects_are_followed_to_their_calls(tmp_path: Path) -> None:
    """Kept in self or in a variable, or called on the spot; in another class the same attribute is another thing."""
    package(
        tmp_path,
        """\
        from .distributed import AllGather
        class One:
            def __init__(self):
                self.gather = AllGather(dim = 2)
            def forward(self, x):
                if self.gather.is_distributed:
                    x, _ = self.gather(x)
                local = AllGather(0)
                return local(x), AllGather(1)(x), local
        class Two:
            def forward(self, x):
                return self.gather(x)
        """,
    )
    assert kinds(find_sites(tmp_path)) == [
        (1, "import", "AllGather"),
        (4, "build", "AllGather"),
        (6, "reference", "AllGather"),
        (7, "call", "AllGather"),
        (8, "build", "AllGather"),
        (9, "call", "AllGather"),
        (9, "build", "AllGather"),
        (9, "call", "AllGather"),
        (9, "reference", "AllGather"),
    ]


def test_names_that_a_module_hands_on_are_followed(tmp_path: Path) -> None:
    """Through the package's own `__init__`, and on through a star import."""
    package(
        tmp_path,
        "from . import Gather\nGather(1)\n",
        __init__="from .distributed import AllGather as Gather\n",
        further="from .use import *\nGather(2)\n",
    )
    sites = find_sites(tmp_path)
    assert [(site.path, site.kind, site.name) for site in sites] == [
        ("pkg/__init__.py", "import", "AllGather"),
        ("pkg/further.py", "import", "*"),
        ("pkg/further.py", "build", "AllGather"),
        ("pkg/use.py", "import", "AllGather"),
        ("pkg/use.py", "build", "AllGather"),
    ]


def test_each_checkout_in_a_tree_has_its_own_copy(tmp_path: Path) -> None:
    """Two forks of one project side by side, one with a src folder: an import means the fork's own file."""
    for fork in ("one", "two/src"):
        package(tmp_path / fork, "")
        write_files(tmp_path / fork.partition("/")[0], {"tests/test_it.py": "from pkg.distributed import all_gather\n"})
    for fork in ("one", "two/src"):
        (site,) = find_sites(tmp_path, f"{fork}/pkg/distributed.py")
        assert site.path == f"{fork.partition('/')[0]}/tests/test_it.py"


def test_files_that_do_not_parse_are_named(tmp_path: Path) -> None:
    """A syntax error, a null byte, brackets without end, an encoding that does not exist; the rest is still read."""
    package(tmp_path, "from .distributed import all_gather\n", broken="def f(:\n", deep=f"x = {'(' * 5000}\n")
    (tmp_path / "pkg/null.py").write_bytes(b"distributed\0\n")
    (tmp_path / "pkg/coded.py").write_bytes(b"# -*- coding: klingon -*-\n")
    many = f"from .distributed import all_gather\nx = {'+'.join(['all_gather'] * 1500)}\n"
    (tmp_path / "pkg/many.py").write_text(many)
    sources = SourceTree(tmp_path)
    assert {use.source.path for use in find_uses(sources, "pkg/distributed.py", NAMES)} == {"pkg/use.py"}
    assert sorted(sources.broken()) == [f"pkg/{name}.py" for name in ("broken", "coded", "deep", "many", "null")]


def test_an_inlined_copys_own_file_has_its_call_sites(tmp_path: Path) -> None:
    """Its own definitions are not reported, what uses them is."""
    write_files(
        tmp_path,
        {"train.py": "class AllGather: ...\nall_gather = AllGather.apply\ndef step(x): return all_gather(x)\n"},
    )
    assert kinds(find_sites(tmp_path, "train.py")) == [(3, "call", "all_gather")]


# ------------------------------------------------------------------ what it becomes


def in_core(folder: Path, adapter: str, code: str) -> tuple[str, list[str]]:
    """One file as the core wants it, and what has to be done by hand, with its line."""
    package(folder, code)
    sources = SourceTree(folder)
    verdict = judge(sources, "pkg/distributed.py", adapter_named(adapter))
    edits = verdict.edits.get("pkg/use.py", {})
    text = rewrite("pkg/use.py", sources.contents["pkg/use.py"], edits).decode() if edits else ""
    return text, [f"{remark.line}: {remark.text}" for remark in verdict.by_hand]


GATHER = """\
from pkg.distributed import AllGather
class Model:
    def __init__(self):
        self.gather = AllGather(dim = 1)
    def forward(self, x, y):
        x, sizes = self.gather(x)
        {use}
"""


@pytest.mark.parametrize(
    ("use", "becomes"),
    [
        ("return x.split(sizes.tolist())", "return x.split(list(sizes))"),
        ("return sizes.sum().item()", "return sum(sizes)"),
        ("return sizes.amax().item() - sizes.min().item()", "return max(sizes) - min(sizes)"),
        ("return sizes[0].item() + len(sizes) + sizes.numel()", "return sizes[0] + len(sizes) + len(sizes)"),
        ("if sizes is None: return x", "if not is_distributed(): return x"),
        ("y, _ = self.gather(y, sizes)", "y, _ = self.gather(y, sizes)"),
        ("y, _ = self.gather(y, sizes = sizes)", "y, _ = self.gather(y, sizes = sizes)"),
        ("return x if (sizes is not None) else y", "return x if (is_distributed()) else y"),
        ("return self.gather.dim, self.gather(x)[0]", "return self.gather.dim, self.gather(x)[0]"),
    ],
)
def test_sizes_become_what_fits_a_tuple(tmp_path: Path, use: str, becomes: str) -> None:
    """Each use that has an exact counterpart is rewritten, and nothing else on the line."""
    text, by_hand = in_core(tmp_path, "musiclm", GATHER.replace("{use}", use))
    assert by_hand == []
    assert text.splitlines()[-1].strip() == becomes
    asks = "is_distributed" in becomes
    assert text.startswith(f"from shared_distributed import AllGather{', is_distributed' if asks else ''}\n")


@pytest.mark.parametrize(
    ("use", "because"),
    [
        ("return x, sizes", "wants a tensor"),
        ("return sizes.cumsum(0)", "no such `.cumsum`"),
        ("return sizes.sum()", "no such `.sum`"),
        ("return sizes[0]", "wants a tensor"),
        ("sizes = None; print(sizes)", "bound elsewhere"),
        ("return self.gather(x)", "the pair is handed on"),
        ("pair = self.gather(x)", "the pair is handed on"),
        ("x, self.sizes = self.gather(x)", "cannot be followed"),
        ("return self.gather", "goes out of sight"),
        ("return self.gather.all_reduce_grads", "keep the flag yourself"),
        ("return [AllGather(dim = 2)]", "goes out of sight"),
        ("g = AllGather(**y)", "write them out"),
        ("return exists(sizes)", "wants a tensor"),  # nobody defines it here: it may be anything
        ("if sizes is None: is_distributed = 1", "a is_distributed of its own"),
        ("return isinstance(y, AllGather)", "not called here"),
        ("return y.model.gather.is_distributed", "may be the object"),
    ],
)
def test_what_has_no_exact_counterpart_is_left_to_a_person(tmp_path: Path, use: str, because: str) -> None:
    """With its line."""
    _, by_hand = in_core(tmp_path, "musiclm", GATHER.replace("{use}", use))
    assert any(because in remark for remark in by_hand), by_hand
    assert {remark.partition(":")[0] for remark in by_hand} <= {"6", "7"}


@pytest.mark.parametrize(
    ("adapter", "code", "because"),
    [
        ("musiclm", "from pkg.distributed import AllGatherFunction", "build an `AllGather`"),
        ("spear-tts", "from pkg.distributed import AllGather", "it is the same"),
        ("st-moe", "from pkg.distributed import exists", "a file of your own"),
        ("mirasol", "from pkg.distributed import *", "name what you use"),
        ("mirasol", "import pkg.distributed", "write `import pkg.distributed as …`"),
        ("mirasol", "from pkg import distributed, use", "a statement of its own"),
        ("mirasol", "from pkg.distributed import get_is_distributed\nget_is_distributed.cache_clear()", "handed on"),
        ("mirasol", "from pkg import distributed\nprint(distributed)", "one by one"),
        ("mirasol", "mock.patch('pkg.distributed.all_gather')", "in a string"),
        ("mirasol", "from pkg.distributed import all_gather\nall_gather(*x)", "written out"),
        ("spear-tts", "from pkg.distributed import all_gather\nf = all_gather", "handed on"),
        ("spear-tts", "from pkg.distributed import something", "spear-tts-distributed has no something"),
        ("musiclm", "from pkg.distributed import AllGather\ngather = AllGather(1)", "goes out of sight"),
        (
            "spear-tts",
            "if TYPE_CHECKING:\n    from pkg.distributed import all_gather\ndef f(x):\n"
            "    from pkg.distributed import all_gather\n    x, s = all_gather(x, 0, None)\n    return s is None",
            "at the top of the file",
        ),
    ],
)
def test_imports_without_a_counterpart_are_left_to_a_person(
    tmp_path: Path, adapter: str, code: str, because: str
) -> None:
    """Each with what to do."""
    _, by_hand = in_core(tmp_path, adapter, code + "\n")
    assert any(because.replace("a statement", "an import statement") in remark for remark in by_hand), by_hand


def test_a_package_that_hands_names_on_is_left_to_a_person(tmp_path: Path) -> None:
    """Others may import from it; so is the file that imports through it."""
    package(tmp_path, "from pkg import AllGather\n", __init__="from .distributed import AllGather\n")
    verdict = judge(SourceTree(tmp_path), "pkg/distributed.py", adapter_named("musiclm"))
    assert [(remark.path, remark.line) for remark in verdict.by_hand] == [("pkg/__init__.py", 1), ("pkg/use.py", 1)]


def test_a_file_that_does_not_parse_may_hide_a_use(tmp_path: Path) -> None:
    """Only if it has the module's name in it."""
    package(tmp_path, "", one="from pkg.distributed import (\n", two="def f(:\n")
    verdict = judge(SourceTree(tmp_path), "pkg/distributed.py", adapter_named("musiclm"))
    assert [remark.path for remark in verdict.by_hand] == ["pkg/one.py"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "from pkg.distributed import all_gather\n"
            'x, _ = all_gather(\n    x,\n    dim,   # rows\n    None,  # not known\n)\nf(a="b")\n',
            "from shared_distributed import all_gather\n"
            'x, _ = all_gather(\n    x,\n    dim,   # rows\n    grad="local",  # not known\n)\nf(a="b")\n',
        ),
        (
            "from pkg.distributed import all_gather\nx, _ = all_gather(\n  x,\n  0,\n  s  # known\n)\n",
            "from shared_distributed import all_gather\n"
            "x, _ = all_gather(\n  x,\n  0,\n  sizes=s,  # known\n  grad='local'\n)\n",
        ),
        (
            "from .distributed import (\n    all_gather, # one\n)\n"
            "x, s = all_gather(x, 0, None)\nif s is None: f(a = 1)\n",
            "from shared_distributed import (\n    all_gather, # one\n    is_distributed,\n)\n"
            "x, s = all_gather(x, 0, grad = 'local')\nif not is_distributed(): f(a = 1)\n",
        ),
        (
            "from . import distributed; import os\nx, _ = distributed.all_gather(é, 0, None)  # ü\n",
            "import shared_distributed as distributed; import os\n"
            "x, _ = distributed.all_gather(é, 0, grad='local')  # ü\n",
        ),
        (
            "import pkg.distributed as d\r\nx, s = d.all_gather(x, 0, None)\r\nif s is None: y = s.tolist()\r\n",
            "import shared_distributed as d\r\nx, s = d.all_gather(x, 0, grad='local')\r\n"
            "if not d.is_distributed(): y = list(s)\r\n",
        ),
    ],
    ids=["comments", "lines", "import", "module", "crlf"],
)
def test_a_rewrite_keeps_the_formatting(tmp_path: Path, before: str, after: str) -> None:
    """Lines, comments, quotes, spacing and newlines as the file has them; letters of several bytes do no harm."""
    package(tmp_path, "")
    (tmp_path / "pkg/use.py").write_bytes(before.encode())
    sources = SourceTree(tmp_path)
    verdict = judge(sources, "pkg/distributed.py", adapter_named("spear-tts"))
    assert verdict.by_hand == []
    assert rewrite("pkg/use.py", sources.contents["pkg/use.py"], verdict.edits["pkg/use.py"]).decode() == after


@pytest.mark.parametrize(
    ("flag", "grad"),
    [("", "'local'"), (", all_reduce_grads=False", "'local'"), (", all_reduce_grads=True", "'sum'")],
)
def test_the_gradient_stays_the_same(tmp_path: Path, flag: str, grad: str) -> None:
    """Local unless it was summed."""
    code = f"from pkg.distributed import AllGather\ndef f(x):\n    g = AllGather(1{flag})\n    return g(x)[0]\n"
    assert f"AllGather(1, grad={grad})" in in_core(tmp_path, "musiclm", code)[0]


def test_a_gradient_chosen_at_run_time_stays_so(tmp_path: Path) -> None:
    """A flag that is no constant becomes a choice."""
    code = "from pkg.distributed import AllGather\ndef f(x, r):\n    return AllGather(1, all_reduce_grads = r)(x)[0]\n"
    assert "AllGather(1, grad = 'sum' if r else 'local')(x)" in in_core(tmp_path, "musiclm", code)[0]


# ------------------------------------------------------------------ what deserves a look

MODULE = "from pkg.distributed import AllGather\n"
FUNCTION = "from pkg.distributed import all_gather, get_is_distributed, all_gather_variable_dim\n"
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
    "built-before-group": (
        "musiclm",
        [
            f"{MODULE}gather = AllGather(1)\n",
            f"{MODULE}def f(g = AllGather(1)): ...\n",
            f"{MODULE}class A:\n    def __init__(self):\n        self.g = AllGather(1)\n",
        ],
        [f"{MODULE}class A:\n    def forward(self, x):\n        return AllGather(1)(x)\n"],
    ),
    "cached-answer": (
        "mirasol",
        [body("return get_is_distributed()"), f"{FUNCTION}FLAG = get_is_distributed()\n"],
        [body("get_is_distributed.cache_clear()"), body("return x.is_distributed")],
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
        ],
        [
            body(GATHERED, "mask, _ = all_gather(mask, 0, s)", "return x[mask]", arguments="x, mask, s"),
            body("x = x[mask]", GATHERED, "return x", arguments="x, mask"),
            body(GATHERED, "labels = torch.arange(len(x))", "return loss(x, labels)"),
            body(GATHERED, "return x[masked_rows]", arguments="x, masked_rows"),
        ],
    ),
    "random-branch": (
        "mirasol",
        [
            body("if random() < 0.5:", f"    {GATHERED}"),
            body("flip = torch.rand(()) < 0.5", "if flip and x:", f"    {GATHERED}"),
            body("if random.random() < 0.5:", "    return x", GATHERED),
        ],
        [
            body("if get_is_distributed():", f"    {GATHERED}", "return x + torch.rand(3)"),
            body(GATHERED, "if random() < 0.5:", "    return x"),
            body("if all_gather(x, 0, None)[0].sum() < random():", "    return x"),
        ],
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_points_at_its_mistake_and_at_nothing_else(tmp_path: Path, rule: str) -> None:
    """Positives and negatives for each rule."""
    adapter, wrong, right = CASES[rule]
    for number, code in enumerate([*wrong, *right]):
        folder = package(tmp_path / str(number), code)
        uses = find_uses(SourceTree(folder), "pkg/distributed.py", adapter_named(adapter).api)
        found = [risk for risk in find_risks(uses, adapter_named(adapter)) if risk.rule == rule]
        assert bool(found) == (code in wrong), code


def test_a_module_that_asks_at_every_call_may_be_built_early(tmp_path: Path) -> None:
    """st-moe's never asks: no warning about when it was built."""
    folder = package(tmp_path, f"{MODULE}gather = AllGather()\n")
    uses = find_uses(SourceTree(folder), "pkg/distributed.py", NAMES)
    assert "built-before-group" not in {risk.rule for risk in find_risks(uses, adapter_named("st-moe"))}


# ------------------------------------------------------------------ the command


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fingerprints of our own copies."""
    return known_variants(tmp_path_factory.mktemp("known"))


@pytest.mark.parametrize("name", PROJECTS)
def test_the_plan_lists_every_line_that_changes(tmp_path: Path, known: Path, name: str) -> None:
    """As JSON: each site with its line, unchanged until the core, and there what `migrate` would write."""
    project = PROJECTS[name]
    repo = project.make(tmp_path, name)
    plan = json.loads(run("plan", repo, "--known", known, "--json").stdout)
    kind = "edited" if name == "edited" else "exact"
    assert (plan["adapter"], plan["copy"], plan["stage"], plan["kind"]) == (
        project.adapter,
        project.copy,
        "original",
        kind,
    )
    assert (plan["by_hand"], plan["problem"]) == ([], None)
    for path in project.in_core:
        before, after = project.files[path].splitlines(), project.expected_in_core(path).splitlines()
        changed = {n: new.strip() for n, (old, new) in enumerate(zip(before, after, strict=True), 1) if old != new}
        planned = {site["line"]: site["becomes"]["core"] for site in plan["sites"] if site["path"] == path}
        assert changed == {line: text for line, text in planned.items() if text != "unchanged"}
        assert {site["becomes"]["vendored"] for site in plan["sites"]} == {"unchanged"}
    rules = {risk["rule"] for risk in plan["risks"]}
    assert ("pair-as-tensor" in rules) == (name == "mirasol")
    assert ("cached-answer" in rules) == (name in ("mirasol", "musiclm", "flat"))


def test_the_plan_for_people(tmp_path: Path, known: Path) -> None:
    """Files and lines, before and after, edits of the copy, and what deserves a look."""
    output = run("plan", PROJECTS["edited"].make(tmp_path, "edited"), "--known", known).output
    for text in (
        "spear_tts_pytorch/distributed.py: adapter spear-tts, edited; at original",
        "edited: rank_of_rows: extra",
        "spear_tts_pytorch/align.py:12",
        "all_gather(mask, 0, sizes = batch_sizes, grad = 'local')",
        "spear_tts_pytorch/align.py:10: which-gradient",
    ):
        assert text in output, output


def test_a_plan_shows_the_stages_ahead(tmp_path: Path) -> None:
    """Fewer at each; in the end there is nothing left."""
    repo = PROJECTS["mirasol"].make(tmp_path, "mirasol")
    for count, stage in enumerate(("vendored", "package", "core")):
        output = run("plan", repo).output
        assert len(re.findall("^  (vendored|package|core): ", output, re.MULTILINE)) == 3 - count
        moved(repo, stage)
    assert "nothing is left to move" in run("plan", repo).output


def test_an_inlined_copy_is_planned_for_by_hand(tmp_path: Path, known: Path) -> None:
    """The plan says where it is and what to do; every site is by hand; migrate refuses with the same words."""
    repo = INLINED.make(tmp_path, "inlined")
    plan = json.loads(run("plan", repo, "--known", known, "--json").stdout)
    assert plan["kind"] == "inlined"
    assert "AllGather (lines" in plan["problem"]
    assert {site["becomes"]["core"] for site in plan["sites"]} == {"by hand"}
    refused = migrate(repo, "vendored", "--known", known, "--write")
    assert refused.exit_code == 1
    assert "Move these definitions into a file of their own" in refused.output


def test_a_copy_at_its_place_needs_no_fingerprint(tmp_path: Path) -> None:
    """Where a known project keeps it, a file that defines AllGather is the copy, however it is written."""
    repo = PROJECTS["mirasol"].make(tmp_path, "mirasol")
    assert json.loads(run("plan", repo, "--json").stdout)["adapter"] == "mirasol"


def test_without_a_copy_there_is_no_plan(tmp_path: Path) -> None:
    """A folder without one, and no folder at all."""
    package(tmp_path, "")
    for command in (("plan",), ("migrate", "--to", "vendored")):
        result = run(*command, tmp_path)
        assert (result.exit_code, "no copy found" in result.output) == (1, True)
        assert "is not a folder" in run(*command, tmp_path / "nowhere").output


def test_several_copies_have_to_be_told_apart(tmp_path: Path, known: Path) -> None:
    """With --path, which may be written in any way but must lie in the repo."""
    repo = PROJECTS["mirasol"].make(tmp_path, "mirasol")
    (repo / "second.py").write_text((repo / "mirasol_pytorch/distributed.py").read_text())
    assert "say which with --path" in run("plan", repo, "--known", known).output
    result = run("plan", repo, "--known", known, "--path", "./mirasol_pytorch/../second.py", "--json")
    assert json.loads(result.stdout)["copy"] == "second.py"
    assert "outside" in run("plan", repo, "--path", "../second.py").output


def test_a_plan_imports_nothing_of_the_repo(tmp_path: Path, known: Path) -> None:
    """Neither its modules nor its setup.py."""
    repo = PROJECTS["musiclm"].make(tmp_path, "musiclm")
    trace = tmp_path / "trace"
    for name in ("musiclm_pytorch/__init__.py", "setup.py", "conftest.py"):
        (repo / name).write_text(f"open({str(trace)!r}, 'w')\n")
    assert run("plan", repo, "--known", known).exit_code == 0
    assert not trace.exists()

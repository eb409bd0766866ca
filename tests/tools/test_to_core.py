# SPDX-License-Identifier: MIT
"""migrate --to core: the forms that move, everything else that stays, and projects made by chance that behave alike."""

import os
from pathlib import Path

import pytest

from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.migrate.proof import File
from shared_distributed_tools.migrate.to_core import look_at_files
from shared_distributed_tools.ranks import World
from shared_distributed_tools.repo.git import Checkout
from shared_distributed_tools.repo.tree import Tree
from shared_distributed_tools.repo.uses import find_uses
from tests.downstream.commands import done, moved, refused, run
from tests.downstream.generated import make, outcomes
from tests.downstream.trees import COPY, commit, committed, package, write_files

pytestmark = pytest.mark.usefixtures("known")


def files_of(folder: Path, adapter: str, code: str, **others: str) -> dict[str, File]:
    """The files of a package that use its copy, by name; `code` is in `use`."""
    tree = Tree(package(folder, code, **others), Checkout.around(folder))
    found = look_at_files(tree, find_uses(tree, COPY, ADAPTERS[adapter].api), ADAPTERS[adapter])
    return {Path(file.source.path).stem: file for file in found}


# ------------------------------------------------------------------ what moves

EXISTS = "def exists(val):\n    return val is not None\n"
CLASS = "class A:\n    def __init__(self):\n        self.gather = {}\n    def forward(self, x):\n        {}\n"


def a_class(*body: str, build: str = "AllGather(1)") -> str:
    """A file with a module that gathers."""
    lines = "\n        ".join(body or ("return self.gather(x)[0]",))
    return f"from .distributed import AllGather\n{EXISTS}{CLASS.format(build, lines)}"


def a_function(*body: str, name: str = "all_gather") -> str:
    """A file with a function that gathers."""
    return f"from .distributed import {name}\n{EXISTS}def f(x, y):\n" + "".join(f"    {line}\n" for line in body)


SIZES = "x, s = self.gather(x)"
DOCUMENTED = 'def exists(val):\n    """Whether there is something: "x"."""\n    return val is not None\n'
EINSUM = "from torch import einsum\n" + a_function(
    "{}", "return map(lambda t: einsum('i d, j d -> i j', t, t), (x, y))"
)
MOVES = [  # adapter, code; what stands in the result
    ("musiclm", a_class(), "from shared_distributed import AllGather\n", "AllGather(1, grad = 'local')"),
    ("musiclm", a_class(build="AllGather(dim=1)"), "AllGather(dim=1, grad='local')"),
    ("musiclm", a_class(build="AllGather(dim = 1, all_reduce_grads = True)"), "AllGather(dim = 1, grad = 'sum')"),
    ("musiclm", a_class(build="AllGather(\n            1,  # rows\n        )"), "    1, grad = 'local',  # rows\n"),
    ("musiclm", a_class(build="AllGather((1))"), "AllGather((1), grad = 'local')"),
    ("st-moe", a_class(build="AllGather()"), "AllGather(grad = 'local')"),
    (
        "musiclm",
        a_class("y = self.gather.is_distributed"),
        "import AllGather, is_distributed\n",
        "y = is_distributed()",
    ),
    ("musiclm", a_class(SIZES, "if exists(s): x = x.split(s.tolist())"), "if is_distributed(): x = x.split(list(s))"),
    ("st-moe", a_class(SIZES, "y = exists(s), s is None, s.sum().item()"), "y = exists(s), s is None, sum(s)"),
    ("musiclm", a_class(SIZES, "self.gather(x, sizes = s)[0]"), "(x, sizes = s if is_distributed() else None)[0]"),
    ("st-moe", a_class(SIZES, "self.gather(x, s)[0]"), "self.gather(x, s)[0]"),
    ("spear-tts", a_function("x, _  = all_gather(x, 0, None)"), "x, _  = all_gather(x, 0, grad = 'local')"),
    (
        "spear-tts",
        a_function("x, _ = all_gather(x, 0, y)"),
        "0, sizes = y if is_distributed() else None, grad = 'local')",
    ),
    ("mirasol", a_function("x, s = all_gather(x, 0, y, True)"), "all_gather(x, 0, sizes = y, grad = 'sum')"),
    ("mirasol", a_function("get_is_distributed()", name="get_is_distributed"), "import is_distributed\n", "    is_d"),
    ("mirasol", a_function("ask()", name="get_is_distributed as ask"), "import is_distributed as ask\n", "    ask()"),
    ("st-moe", a_function("y = pad", name="pad_dim_to as pad"), "from shared_distributed import pad_dim_to as pad\n"),
    ("mirasol", EINSUM.format("x = all_gather(x, 0, None)"), "x = all_gather(x, 0, grad = 'local')"),
    (
        "musiclm",
        a_class().replace("self.gather =", "self.gather: AllGather ="),
        "self.gather: AllGather = AllGather(1, grad = 'local')",
    ),
    (
        "musiclm",
        a_class(SIZES, "if exists(s): return s.tolist()").replace(EXISTS, DOCUMENTED),
        "if is_distributed(): return list(s)",
    ),
    ("musiclm", a_class("text = 'ñ→'; x, s = self.gather(x); y = s is None"), "'ñ→'; x, s", "y = not is_d"),
    ("musiclm", a_class().replace("\n", "\r\n"), "AllGather(1, grad = 'local')\r\n"),
]


@pytest.mark.parametrize("case", MOVES)
def test_a_proven_form_is_rewritten_and_the_rest_of_the_file_is_kept(tmp_path: Path, case: tuple[str, ...]) -> None:
    """The gradient is made explicit, sizes are named; layout, comments and line ends stay."""
    adapter, code, *expected = case
    file = files_of(tmp_path, adapter, code)["use"]
    assert file.is_proven, [*file.rows, file.stays]
    for text in expected:
        assert text in file.edits.result
    assert not any(line for line in code.split("\n") if "distributed" in line and line in file.edits.result.split("\n"))


# ------------------------------------------------------------------ what stays

STAYS = {
    "bound by a fallback": "try:\n    from .distributed import AllGather\nexcept ImportError:\n"
    "    from .other import AllGather\n",
    "import under a condition": "if True:\n    from .distributed import AllGather\n",
    "star": "from .distributed import *\n",
    "another star": "from math import *\n" + a_class(),
    "module": "from . import distributed\ndistributed.AllGather(1)\n",
    "module by its full name": "import pkg.distributed\npkg.distributed.AllGather(1)\n",
    "through the package": "import pkg\npkg.distributed.AllGather(1)\n",
    "through another module": "from . import utils\ndef f(x): return utils.AllGather(0)(x)[0]\n",
    "imported from another module": a_class().replace(".distributed", ".utils"),
    "bound again by an import": a_class() + "from .other import AllGather\n",
    "bound again by a loop": a_class() + "for AllGather in (): pass\n",
    "a name that the core lacks": "from .distributed import AllGatherFunction\n",
    "a name in a dict": "from .distributed import AllGather\ngathers = dict(a = AllGather)\n",
    "a subclass": "from .distributed import AllGather\nclass Mine(AllGather): pass\n",
    "isinstance": "from .distributed import AllGather\ndef f(x): return isinstance(x, AllGather)\n",
    "a parameter of that name": a_class() + "def other(AllGather): return AllGather(3)\n",
    "a flag that is computed": a_class(build="AllGather(1, all_reduce_grads = a if c else b)"),
    "a flag that is no bool": a_class(build="AllGather(1, all_reduce_grads = 1)"),
    "keywords that are not written out": a_class(build="AllGather(1, **options)"),
    "annotated and not built": a_class() + "    gather: AllGather\n",
    "a gather in a variable": a_function("g = AllGather(0)", "x, _ = g(x)", name="AllGather"),
    "a gather that is called where it is built": a_function("return AllGather(0)(x)[0]", name="AllGather"),
    "bound by a subclass": a_class() + "class B(A):\n    def __init__(self):\n        self.gather = print\n",
    "bound by another class": a_class() + "class B:\n    def __init__(self, x):\n        self.gather = x\n",
    "a pair and an einsum in a loop": EINSUM.format("for _ in y: x = all_gather(x, 0, None)"),
    "a pair and an einsum of another": EINSUM.format("x = all_gather(x, 0, None)").replace("torch", "mine"),
    "a class's own attribute": "from .distributed import AllGather\nclass A:\n    gather = AllGather(1)\n",
    "one for the whole file": "from .distributed import AllGather\ngather = AllGather(1)\n",
    "kept twice": a_class("self.gather = None"),
    "hidden by the class": a_class() + "    gather = None\n",
    "hidden by a method": a_class() + "    def gather(self): pass\n",
    "in a list": a_class(build="[AllGather(1)]"),
    "conditional": a_class(build="AllGather(1) if x else None"),
    "by walrus": "from .distributed import AllGather\ndef f(x): return (g := AllGather(0))(x)[0]\n",
    "a variable that is bound again": "from .distributed import AllGather\ndef f(g):\n    g = AllGather(0)\n",
    "passed on": a_class("return helper(self.gather)"),
    "getattr": a_class("return getattr(self, 'gather')(x)"),
    "children": a_class("return [one(x) for one in self.children()]"),
    "another class's self": a_class() + "class B:\n    def forward(self, x): return self.gather(x)[1]\n",
    "from outside": a_class() + "def f(model, x): return model.gather(x)[1].tolist()\n",
    "replaced from outside": a_class() + "def f(model, x): model.gather = x\n",
    "called inside a call": a_class("return self.gather(x.gather(x)[1])[0]"),
    "another self": a_class() + "def f(self, x): self.gather = x\n",
    "the flag of something else": a_class() + "def f(model): return model.is_distributed\n",
    "the flag is set": a_class("self.gather.is_distributed = False"),
    "is_distributed means something else": a_class("return self.gather.is_distributed")
    + "def f(is_distributed): pass\n",
    "the pair is returned": a_class("return self.gather(x)"),
    "the pair is kept": a_class("pair = self.gather(x)", "x, s = pair"),
    "the pair is taken for a tensor": a_class("x = self.gather(x)", "return x"),
    "starred call": a_class("return self.gather(*x)[0]"),
    "keywords in the call": a_class("return self.gather(x, **x)[0]"),
    "the sizes alone": a_class("return self.gather(x)[1]"),
    "_ is read": a_class("x, _ = self.gather(x)", "return _"),
    "sizes in self": a_class("x, self.s = self.gather(x)"),
    "sizes are returned": a_class(SIZES, "return s"),
    "sizes bound by another gather": a_class(SIZES, "x, s = other(x)", "s.tolist()"),
    "sizes bound by a match": a_class(SIZES, "match x:", "    case s: s.tolist()"),
    "sizes bound by a match of the rest": a_class(SIZES, "match x:", "    case {**s}: s.tolist()"),
    "sizes bound by an import": a_class(SIZES, "import sizes as s", "s.tolist()"),
    "sizes bound by for": a_class(SIZES, "for s in x: s.tolist()"),
    "sizes bound by with": a_class(SIZES, "with x as s: s.tolist()"),
    "sizes bound by except": a_class(SIZES, "try: pass", "except Exception as s: s.tolist()"),
    "sizes bound by a comprehension": a_class(SIZES, "return [s.tolist() for s in x]"),
    "sizes bound by a walrus": a_class(SIZES, "return (s := x).tolist()"),
    "sizes bound by a parameter": a_class(SIZES, "def f(s): return s.tolist()"),
    "sizes bound by def": a_class(SIZES, "def s(): pass"),
    "sizes bound by a class": a_class(SIZES, "class s: pass"),
    "sizes deleted": a_class(SIZES, "del s"),
    "sizes bound by augmented assignment": a_class(SIZES, "s += 1"),
    "global sizes": a_class("global s", SIZES),
    "nonlocal sizes": a_class("def f():", "    nonlocal s", "    y, s = self.gather(x)"),
    "sizes in a class body": a_class("class B:", "    y, s = self.gather(x)"),
    "locals": a_class(SIZES, "return locals()"),
    "a slice of sizes": a_class(SIZES, "return s[-1:].item()"),
    "sizes in an index of sizes": a_class(SIZES, "return s[s.numel() - 1].item()"),
    "tolist with an argument": a_class(SIZES, "return s.tolist(1)"),
    "the method alone": a_class(SIZES, "return s.tolist"),
    "list means something else": a_class(SIZES, "return s.tolist()") + "def f(list): pass\n",
    "sum means something else": a_class(SIZES, "return s.sum().item()") + "sum = max\n",
    "exists means something else": a_class(SIZES, "return exists(s)").replace(" is not None", " != 0"),
    "exists is imported": a_class(SIZES, "return exists(s)").replace(EXISTS, "from x import exists\n"),
    "sizes made on the spot": a_class("return self.gather(x, x or [1])[0]"),
    "a number for sizes": a_class("return self.gather(x, 3)[0]"),
    "sizes that are computed": a_class(SIZES, "return self.gather(x, s + 1)[0]"),
    "one change inside another": a_class(SIZES, "return self.gather(AllGather(s.tolist())(x)[0])[0]"),
}


FUNCTIONS_STAY = {
    "a class of functions": "from .distributed import AllGather\ndef f(x): return AllGather.apply(x, 0, None)[0]\n",
    "too few arguments": a_function("x, s = all_gather(x, 0)"),
    "starred": a_function("x, s = all_gather(x, 0, None, *y)"),
    "handed on as a value": a_function("return map(all_gather, x)"),
    "a pair that is indexed later": a_function("x = all_gather(x, 0, None)", "return x[0]"),
    "a pair that is returned": a_function("x = all_gather(x, 0, None)", "y = x @ y", "return x"),
    "a pair in a loop": a_function("for _ in y:", "    x[0] @ y", "    x = all_gather(x, 0, None)", "    x @ y"),
    "its cache": "from .distributed import get_is_distributed\nget_is_distributed.cache_clear()\n",
}


@pytest.mark.parametrize(
    ("adapter", "code"),
    [*(("musiclm", code) for code in STAYS.values()), *(("mirasol", code) for code in FUNCTIONS_STAY.values())],
    ids=[*STAYS, *FUNCTIONS_STAY],
)
def test_what_is_not_proven_is_left_to_a_person(tmp_path: Path, adapter: str, code: str) -> None:
    """The file stays as it is, with the line and what to do."""
    file = files_of(tmp_path, adapter, code, utils="from .distributed import AllGather\n")["use"]
    assert not file.is_proven
    assert file.stays or any(row.is_by_hand and len(row.core) > 20 for row in file.rows)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other.py", "from .use import AllGather\n"),
        ("other.py", "from .use import *\n"),
        ("other.py", "from . import use\nuse.AllGather(3)\n"),
        ("other.py", "mock.patch('pkg.use.AllGather')\n"),
        ("stub.pyi", "from .use import AllGather\n"),
        ("notes.ipynb", '{"source": ["from pkg.use import AllGather\\n"]}\n'),
        ("other.py", "from .distributed import AllGather\ndef f(x): return isinstance(x, AllGather)\n"),
        ("other.py", "from .distributed import AllGather\ndef f(g): return AllGather(1) and g.is_distributed\n"),
        ("other.py", "def f(model): return model.gather.is_distributed\n"),
        ("other.py", "for m in model.modules():\n    if hasattr(m, 'all_reduce_grads'): m.all_reduce_grads = True\n"),
        ("other.py", "import pkg\ndef f(x): return pkg.distributed.AllGather(1)(x)\n"),
        ("other.py", "import pkg as p\ndef f(x): return p.distributed.AllGather(1)(x)\n"),
        ("notes.ipynb", '{"source": ["import pkg\\n", "pkg.distributed.AllGather(1)"]}\n'),
        ("other.py", "def f(mock): mock.patch('pkg.distributed.AllGatherFunction')\n"),
        ("other.py", "from .use import A\nclass B(A):\n    def forward(self, x): return self.gather(x)[1]\n"),
        (
            "other.py",
            "from .use import A\nclass B(A):\n    def f(self, x):\n        self.gather = x\n        self.gather()\n",
        ),
    ],
)
def test_a_file_stays_while_another_depends_on_what_it_has(tmp_path: Path, name: str, text: str) -> None:
    """It hands names on, or its gather may be reached from there."""
    committed(write_files(package(tmp_path, a_class()), {f"pkg/{name}": text}))
    assert not files_of(tmp_path, "musiclm", a_class())["use"].is_proven


def test_others_of_the_same_name_keep_nothing(tmp_path: Path) -> None:
    """A collective of torch and a method of tensors are other things."""
    other = """\
        import torch.distributed as dist
        class Trainer:
            def step(self, x):
                dist.gather(x)
                return torch.distributed.gather(x), x.gather(-1, x), self.is_distributed
        """
    stays = "from .distributed import AllGather\ngather = AllGather(1)\n"
    files = files_of(tmp_path, "musiclm", a_class(), trainer=other, stays=stays)
    assert {name: file.is_proven for name, file in files.items()} == {"use": True, "stays": False}
    assert files["use"].stays == ""


# ------------------------------------------------------------------ the command


def test_files_move_one_by_one(repo: Path) -> None:
    """What is not proven is listed and stays on the shim; after an edit by hand the next run goes on from there."""
    late = repo / "spear_tts_pytorch/late.py"
    late.write_text("from .distributed import all_gather\ndef f(x): return all_gather(x, 0, None)\n")
    commit(repo)
    (repo / "not_tracked.py").write_text("from spear_tts_pytorch.distributed import all_gather\n")
    output = done("migrate", repo, "--to", "core", "--write")
    assert "spear_tts_pytorch/late.py:2: def f(x): return" in output
    assert "unpack it at once" in output
    assert "spear_tts_pytorch" in (repo / "not_tracked.py").read_text()
    (repo / "not_tracked.py").unlink()
    commit(repo)
    assert "1 of 2 files are on the core" in run("status", repo, COLUMNS="300").output
    assert refused(run("migrate", repo, "--to", "core"), "no file can move as it is")
    late.write_text(late.read_text().replace("None)", "None)[0]"))
    commit(repo)
    moved(repo, "core")
    assert "nothing is left to move" in done("plan", repo)


def test_projects_made_by_chance_behave_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Accepted files give the same values, gradients and errors, alone and on two ranks. GENERATED says how many.

    Alone the core has no error where the original had one.
    """
    made = {seed: make(seed, tmp_path / str(seed)) for seed in range(int(os.environ.get("GENERATED", "50")))}
    accepted = [seed for seed, one in made.items() if one[1]]
    folders = [str(tmp_path / str(seed) / when) for seed in accepted for when in ("before", "after")]
    with World(2) as world:
        by_rank = [outcomes(folders), *world.run(outcomes, folders)]
    for where, results in zip(("alone", "rank 0", "rank 1"), by_rank, strict=True):
        for seed, before, after in zip(accepted, results[::2], results[1::2], strict=True):
            was_error_alone = where == "alone" and isinstance(before, str)
            assert before == after or was_error_alone, f"{where}, seed {seed}:\n" + "\n".join(made[seed])
    with capsys.disabled():
        print(f" {len(accepted)} of {len(made)} projects accepted ", end="")
    assert len(accepted) > len(made) / 4

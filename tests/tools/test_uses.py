# SPDX-License-Identifier: MIT
"""Which files of a tree are looked at, and where these use the names of their copy."""

import os
import textwrap
import time
import weakref
from pathlib import Path

import pytest

from shared_distributed_tools.repo import files
from shared_distributed_tools.repo import tree as tree_module
from shared_distributed_tools.repo.tree import Tree
from shared_distributed_tools.repo.uses import Site, Use, find_uses
from tests.downstream.trees import COPY, package, write_files

NAMES = ("AllGather", "all_gather", "get_is_distributed")


def uses_of(folder: Path, copy: str = COPY) -> list[Use]:
    return find_uses(Tree(folder), copy, NAMES)


# ------------------------------------------------------------------ imports


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
        ("try: from .distributed import all_gather\nexcept ImportError: from other import all_gather", "all_gather"),
    ],
)
def test_every_way_to_import_is_followed(tmp_path: Path, statement: str, called: str) -> None:
    """Absolute, relative, renamed, through the module, by star, in one branch of several: import and call are found."""
    package(tmp_path, f"{statement}\nx = {called}(x, 0, None)\n")
    first, second = (use.site for use in uses_of(tmp_path))
    line = statement.count("\n") + 2
    assert (first.kind, first.path, first.line) == ("import", "pkg/use.py", 1)
    assert second == Site("pkg/use.py", line, "call", "all_gather", f"x = {called}(x, 0, None)")


def test_one_import_statement_is_one_use(tmp_path: Path) -> None:
    """However many names it brings; each is told with the name that it has here."""
    package(tmp_path, "from .distributed import (\n    AllGather as Gather,\n    all_gather,\n)\n")
    (use,) = uses_of(tmp_path)
    assert use.site == Site("pkg/use.py", 1, "import", "AllGather, all_gather", "from .distributed import (")
    assert use.bound == {"Gather": "AllGather", "all_gather": "all_gather"}


def test_names_that_a_module_hands_on_are_followed(tmp_path: Path) -> None:
    """Through the package's own `__init__`, on through a star import; each use says through which module it comes."""
    package(
        tmp_path,
        "from . import Gather\nGather(1)\n",
        __init__="from .distributed import AllGather as Gather\n",
        further="from .use import *\nGather(2)\n",
        last="from pkg import further\nfurther.Gather(3)\n",
    )
    assert [(use.site.path, use.kind, use.name, use.through) for use in uses_of(tmp_path)] == [
        ("pkg/__init__.py", "import", "AllGather", ""),
        ("pkg/further.py", "import", "*", "pkg/use"),
        ("pkg/further.py", "build", "AllGather", "pkg/use"),
        ("pkg/last.py", "build", "AllGather", "pkg/further"),
        ("pkg/use.py", "import", "AllGather", "pkg"),
        ("pkg/use.py", "build", "AllGather", "pkg"),
    ]


@pytest.mark.parametrize("place", ["", "src/", "lib/", "build/lib/"])
def test_a_package_is_found_wherever_it_stands(tmp_path: Path, place: str) -> None:
    """Tests and scripts beside the folder that holds it import it by its name; `build` is a folder like others."""
    package(tmp_path / place, "from pkg.distributed import all_gather\n", pkg="")
    write_files(tmp_path, {"tests/test_it.py": "from pkg.distributed import all_gather\n"})
    assert [use.site.path for use in uses_of(tmp_path, f"{place}pkg/distributed.py")] == sorted(
        [f"{place}pkg/use.py", "tests/test_it.py"]
    )


def test_each_checkout_in_a_tree_has_its_own_copy(tmp_path: Path) -> None:
    """Two forks of one project side by side, one with a src folder: an import means the fork's own file."""
    for fork in ("one", "two/src"):
        package(tmp_path / fork, "", pkg="")
        write_files(tmp_path / fork.partition("/")[0], {"tests/test_it.py": "from pkg.distributed import all_gather\n"})
    for fork in ("one", "two/src"):
        (use,) = uses_of(tmp_path, f"{fork}/pkg/distributed.py")
        assert use.site.path == f"{fork.partition('/')[0]}/tests/test_it.py"


# ------------------------------------------------------------------ names and objects


USES = {
    "a module is reached through its package": """\
        import pkg
        pkg.distributed.AllGather(0)  # build
        """,
    "names are followed by spelling, whatever hides them": """\
        from .distributed import all_gather  # import
        def hidden(all_gather): return all_gather(1)  # call
        """,
    "objects are followed to their calls: in self, in a variable, called on the spot; not in another class": """\
        from .distributed import AllGather, all_gather  # import
        class One:
            shared = AllGather(3)  # build
            def __init__(self):
                self.gather = AllGather(dim = 2) if True else None  # build
            def forward(self, x):
                if self.gather.is_distributed:  # reference*
                    x, _ = self.gather(x)  # call*
                local = AllGather(0)  # build
                return local(x), AllGather(1)(x), local, self.shared(x)  # call* build call* reference* call*
            apply = AllGather.apply  # reference
        class Two:
            def forward(self, x):
                return self.gather(x), AllGather.apply(x)  # call
        """,
    "torch has a module of that name": "import torch.distributed as distributed\ndistributed.all_gather(x)\n",
    "another module has that function": "from .other import all_gather\nall_gather(x)\n",
    "another folder has that module": "from ..distributed import all_gather\nall_gather(x)\n",
    "the file has that function itself": "# distributed\ndef all_gather(x): ...\nall_gather(x)\n",
}


@pytest.mark.parametrize("what", USES)
def test_what_is_a_use(tmp_path: Path, what: str) -> None:
    """The comment at the end of a line says which uses it has, with a star for one of an object that was built."""
    code = textwrap.dedent(USES[what])
    found = uses_of(package(tmp_path, code))
    marked = [line.partition("  # ")[2].split() for line in code.splitlines()]
    built = {use.node for use in found if use.kind == "build"}
    uses = [(use.site.line, use.kind + "*" * (use.owner in built)) for use in found]
    assert sorted(uses) == sorted((number, kind) for number, kinds in enumerate(marked, 1) for kind in kinds)
    assert {use.name for use in found if use.kind != "import"} <= {"AllGather", "all_gather"}


# ------------------------------------------------------------------ the walk


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its reason, if it may use the copy, and a folder without permission; the rest is still read."""
    package(tmp_path, "from .distributed import all_gather\n", broken="import distributed as\n", other="def f(:\n")
    (tmp_path / "pkg/null.py").write_bytes(b"distributed\0\n")
    (tmp_path / "pkg/coded.py").write_bytes(b"# -*- coding: klingon -*- distributed\n")
    (tmp_path / "pkg/deep.py").write_text(f"distributed = {'(' * 5000}\n")
    (tmp_path / "pkg/large.py").write_text("# distributed\n" * 1_000)
    (tmp_path / "pkg/closed.py").mkdir()
    os.mkfifo(tmp_path / "pkg/pipe.py")
    monkeypatch.setattr(files, "LARGEST", 10_000)
    scandir = os.scandir

    def refuse(path: Path) -> object:
        if path.name == "closed.py":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    tree = Tree(tmp_path)
    assert [use.source.path for use in find_uses(tree, COPY, NAMES)] == ["pkg/use.py"]
    assert all(one.may_hide_a_copy for one in tree.unread)
    reasons = {one.path.removeprefix("pkg/"): one.why for one in tree.unread}
    assert set(reasons) == {f"{name}.py" for name in ("broken", "closed", "coded", "deep", "large", "null", "pipe")}
    assert reasons["pipe.py"] == "not a plain file"
    assert reasons["broken.py"] == "does not parse: invalid syntax (broken.py, line 1)"
    assert reasons["large.py"] == "larger than 0 MiB"
    assert reasons["closed.py"] == "cannot be read: Permission denied"


def test_links_are_not_followed(tmp_path: Path) -> None:
    """To a folder, a file, or nowhere: each is named; what it leads to is looked at where it lies."""
    inside, outside = tmp_path / "tree", tmp_path / "outside"
    write_files(inside, {"pkg/a.py": ""})
    write_files(outside, {"b.py": "", "c.txt": ""})
    for link, target in (("loop", inside), ("same.py", "pkg/a.py"), ("self.py", "self.py"), ("other", outside)):
        (inside / link).symlink_to(target)
    (inside / "notes").symlink_to(outside / "c.txt")
    tree = Tree(inside)
    assert tree.files == ["pkg/a.py"]
    assert [one.path for one in tree.unread] == ["loop", "other", "same.py", "self.py"]
    assert not any(one.may_hide_a_copy for one in tree.unread)
    assert Tree(inside / "other").files == ["b.py"]


def test_installed_packages_are_looked_at_when_asked_for(tmp_path: Path) -> None:
    """A project's environment is not the project; caches and git's own files never are."""
    for place in ("env/lib/site-packages/a", ".git", "__pycache__", "build"):
        write_files(tmp_path / place, {"copy.py": ""})
    (tmp_path / "env" / "pyvenv.cfg").touch()
    tree = Tree(tmp_path)
    assert tree.files == ["build/copy.py"]
    assert [(one.path, one.may_hide_a_copy) for one in tree.unread] == [("env", False)]
    for inside in ("env", "env/lib/site-packages", "env/lib/site-packages/a"):
        assert [Path(path).name for path in Tree(tmp_path / inside).files] == ["copy.py"]


def test_a_file_is_parsed_once_and_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second question about a file costs nothing; a large tree is not held in memory whole."""
    write_files(tmp_path, {f"{name}.py": f"{name} = 1\n" * 100 for name in "abcd"})
    tree = Tree(tmp_path)
    assert tree.source("a.py") is tree.source("a.py")
    monkeypatch.setattr(tree_module, "KEPT", 1_300)
    first = tree.source("b.py")
    assert tree.source("b.py") is first
    tree.source("c.py")
    tree.source("d.py")
    assert tree.source("b.py") is not first


def test_files_that_do_not_use_the_copy_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many mention its module's name."""
    others = {f"m{number}": "import torch.distributed\n" for number in range(9)}
    package(tmp_path, "from .distributed import all_gather\n", **others)
    alive: weakref.WeakSet[object] = weakref.WeakSet()
    at_once = []
    source = Tree.source

    def watched(tree: Tree, path: str) -> object:
        found = source(tree, path)
        alive.add(found)
        at_once.append(len(alive))
        return found

    monkeypatch.setattr(Tree, "source", watched)
    monkeypatch.setattr(tree_module, "KEPT", 1)
    assert len(uses_of(tmp_path)) == 1
    assert max(at_once) <= 3


def test_a_long_chain_of_attributes_is_no_hang(tmp_path: Path) -> None:
    """It takes a second or is nested too deeply, and not a minute."""
    package(tmp_path, f"from .distributed import *\nAllGather{'.b' * 2500}\n")
    start = time.process_time()
    assert len(uses_of(tmp_path)) in (0, 2)
    assert time.process_time() - start < 10

# SPDX-License-Identifier: MIT
"""What `adapters scan` finds in a tree, what it says about it, and what `adapters fingerprint` records."""

import ast
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from downstream.commands import run
from downstream.copies import DEFINITIONS, FAMILY, LARGER, RELATIVE, REWRITTEN, SYNTAX
from shared_distributed_tools.header import Header, hash_of
from shared_distributed_tools.migration import fingerprints, survey
from shared_distributed_tools.migration.definitions import decode, may_hold_the_family, parse
from shared_distributed_tools.migration.fingerprints import Variant, record
from shared_distributed_tools.migration.scopes import Scopes
from shared_distributed_tools.migration.survey import Finding, find_copy, scan

ROOT = Path(__file__).resolve().parents[1]
KNOWN = [record("ours", "mirasol", parse(FAMILY))]
LOST_BRACKET = FAMILY.replace("width - x.shape[dim]])", "width - x.shape[dim]")


def found_in(text: str, variants: Sequence[Variant] = KNOWN) -> Finding | None:
    return find_copy(parse(text), "some.py", ".", variants)


def copy_in(text: str) -> Finding:
    finding = found_in(text)
    assert finding is not None
    return finding


def differences(finding: Finding) -> dict[str, list[str]]:
    said: dict[str, list[str]] = {}
    for one in finding.differences:
        said.setdefault(one.name, []).append(one.how)
    return said


def edited(*changes: tuple[str, str]) -> str:
    text = FAMILY
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.fixture
def known(tmp_path: Path) -> Path:
    """A file with the fingerprint of our own family, made by the command."""
    (tmp_path / "family.py").write_text(FAMILY)
    path = tmp_path / "known" / "known.json"
    path.parent.mkdir()
    command = ["fingerprint", tmp_path / "family.py", "--name", "ours", "--adapter", "mirasol", "--into", path]
    assert run(*command).exit_code == 0
    (tmp_path / "family.py").unlink()
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    return folder


# ---------------------------------------------------------------- what is shipped


def test_the_four_originals_and_the_flat_fork_are_known() -> None:
    """Each with its adapter, each with what it is recognised by; `adapters new` adds more."""
    known = {variant.name: variant for variant in fingerprints.shipped()}
    originals = {
        "mirasol": "mirasol",
        "musiclm": "musiclm",
        "musiclm-flat": "musiclm",
        "spear-tts": "spear-tts",
        "st-moe": "st-moe",
    }
    assert {name: known[name].adapter for name in originals} == originals
    for name in originals:
        assert sum(one.is_telling for one in known[name].definitions) == 2, name


def test_what_is_shipped_holds_no_source_text() -> None:
    """Every word in it is a name, a place in a signature, or a hash; and it is as the command writes it."""
    content = fingerprints.SHIPPED.read_bytes()
    word = re.compile(r"[A-Za-z_.*/-]*(=?[0-9a-f]{8})*|[0-9a-f]{8}( [0-9a-f]{8})*|autograd function")

    def strings(value: object) -> list[str]:
        if isinstance(value, dict):
            return [*map(str, value), *(text for one in value.values() for text in strings(one))]
        if isinstance(value, list):
            return [text for one in value for text in strings(one)]
        return [value] if isinstance(value, str) else []

    every = strings(json.loads(content))
    assert len(every) > 300
    assert [text for text in every if not word.fullmatch(text)] == []
    assert fingerprints.encode(list(fingerprints.shipped())) == content


# ---------------------------------------------------------------- the normal form


PINNED_FAMILY = (
    "08dcaa170f17d5d7 2bad79066b993b89 2eaf80b02d16f50a b1b9be1454a89dff 846474effe435256 "
    "fcd369404d760e90 ebb9ac0454883d17 9d873bce352611a0 5455985f1db2d3a1"
)
PINNED_SYNTAX = (
    "4a8603e0a209f6c1 a2f961f1 e0e3aa1f 69c9201e d0509202 b78520b0 85d6c071 f43bbb82 8c2d01a1 7955bc18 "
    "e5e1b4f3 f46abfb0 37a78210 e15b0340 22e3ea36 d9155c92 45ffd87c 67cebc7d 6b0143d0 4df173a0 a13d7dcf "
    "31efb88e 7e847e24 937ccdcd f2ed83fe b659c3d8 255d8fa8 a668d9b0 438012d4 f71081fb 1b77d19d"
)


def test_hashes_are_those_of_every_python() -> None:
    """Pinned: what one version of Python records, the others recognise. If this fails, what is shipped is void."""
    assert " ".join(one.hash for one in KNOWN[0].definitions) == PINNED_FAMILY
    definition = parse(SYNTAX).definitions[0].normal
    assert " ".join([definition.hash, *(statement.hash for statement in definition.statements)]) == PINNED_SYNTAX
    assert definition.signature == {"": ["a", "/", "b=b5b88391", "*rest", "key=6c7b6fcf", "**options"]}


SAME = [
    ("x + y", "(x)+( y )"),
    ("'a' 'b'", '"ab"'),
    ("f'{x}' 'b'", "f'{x}b'"),
    ("torch.distributed.get_rank()", "dist.get_rank()"),
    ("torch.distributed.get_rank()", "td.get_rank()"),
    ("torch.distributed.get_rank()", "alias.get_rank()"),
    ("torch.distributed.get_rank()", "get_rank()"),
    ("torch.nn.functional.pad(x)", "F.pad(x)"),  # what F means where nobody imported it
    ("[i for i in x]", "[j for j in x]"),
    ("lambda a, b: a", "lambda c, d: c"),
    ("helper(x)", "other_helper(x)"),  # told apart by what the definition uses
    ("0\n    from helpers import f\n    return f(x)", "0\n    return f(x)"),
]
OTHER = [
    ("x + y", "y + x"),
    ("x + y", "x - y"),
    ("x[0]", "x[1]"),
    ("1", "1.0"),
    ("1", "True"),
    ("'1'", "b'1'"),
    ("f(x, y=1)", "f(x, z=1)"),
    ("x.max()", "x.min()"),
    ("torch.empty(1)", "torch.zeros(1)"),
    ("[x for x in y]", "{x for x in y}"),
    ("lambda a, b: a", "lambda a, b: b"),
    ("(y, x, y)", "(y, x, x)"),
    ("x if y else None", "None if y else x"),
    ("torch.distributed.get_rank()", "twice.get_rank()"),
    ("0\n    from helpers import f\n    return f(x)", "0\n    return f(x, x)"),
    (
        "0\n    a = b = 1\n    def g():\n        nonlocal a\n        a = 2",
        "0\n    a = b = 1\n    def g():\n        nonlocal b\n        b = 2",
    ),
]
TEMPLATE = """
import torch
import torch.distributed as dist
from torch import distributed as td
from torch.distributed import get_rank
alias = torch.distributed
twice = torch.distributed
twice = None
def definition(x, y):
    return {}
"""


def normal_of(expression: str) -> str:
    (definition,) = [one for one in parse(TEMPLATE.format(expression)).definitions if one.name == "definition"]
    return definition.normal.hash


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_code_has_one_normal_form(one: str, other: str) -> None:
    """Layout, quotes, import style and local names are nobody's difference."""
    assert normal_of(one) == normal_of(other)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_other_code_has_another_normal_form(one: str, other: str) -> None:
    """Values, operators, attributes, keywords and which name goes where are."""
    assert normal_of(one) != normal_of(other)


# ---------------------------------------------------------------- copies


@pytest.mark.parametrize("text", [FAMILY, REWRITTEN, FAMILY.replace("\n", "\r\n"), "\f" + FAMILY])
def test_an_exact_copy(text: str) -> None:
    """Comments, docstrings, formatting, local names, annotations, imports and order do not matter."""
    finding = copy_in(text)
    assert (finding.kind, finding.similarity, finding.differences) == ("exact", 100, ())
    assert (finding.variant, finding.adapter) == ("ours", "mirasol")
    assert [part.known for part in finding.definitions] == DEFINITIONS
    assert finding.undefined == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        # the part only
        ([("    return own, torch.tensor(lengths)", "    return own")], {"share_of": ["changed"]}),
        # another mask expression
        (
            [("places[None, :] < lengths[:, None]", "torch.lt(places.unsqueeze(0), lengths.unsqueeze(1))")],
            {"gather_ragged": ["changed"]},
        ),
        # a wrong slice
        ([("ctx.lengths[:rank]", "ctx.lengths[: rank + 1]")], {"RaggedGather": ["changed"]}),
        # one parameter more
        ([("def widen(x, width, dim=0)", "def widen(x, width, dim=0, value=0)")], {"widen": ["signature differs"]}),
        ([("def widen(x, width, dim=0)", "def widen(x, width, dim=1)")], {"widen": ["signature differs"]}),
        ([("def __init__(self, dim=0)", "def __init__(self, *, dim=0)")], {"Gather": ["signature differs"]}),
        # a name that callers pass
        (
            [("gather_even(x)", "gather_even(t)"), ("empty_like(x)", "empty_like(t)"), ("parts, x.c", "parts, t.c")],
            {"gather_even": ["signature differs"]},
        ),
        # renamed, with the calls: nothing else changes
        ([("gather_even", "collect")], {"collect": ["renamed"]}),
        ([("RaggedGather", "Op"), ("gather_ragged", "ragged")], {"Op": ["renamed"], "ragged": ["renamed"]}),
        # renamed and changed
        (
            [("gather_ragged", "ragged"), ("is_real = is_real.flatten()", "is_real = is_real.reshape(-1)")],
            {"ragged": ["renamed", "changed"]},
        ),
        # two helpers for one another, in one place
        ([("torch.cat(gather_even(mine))", "torch.cat(is_given(mine))")], {"gather_lengths": ["changed"]}),
        # the same statements, otherwise connected
        ([("begin, ctx.lengths[rank])", "rank, ctx.lengths[begin])")], {"RaggedGather": ["changed"]}),
        # helpers for rank and world size, cached; and bools gathered as integers
        (
            [
                ("def is_given", "@cache\ndef world_size():\n    return dist.get_world_size()\n\n\ndef is_given"),
                ("import torch\n", "from functools import cache\nimport torch\n"),
                ("range(dist.get_world_size())", "range(world_size())"),
                ("        return out, lengths", "        return out.bool() if x.dtype == torch.bool else out, lengths"),
            ],
            {"gather_even": ["changed"], "RaggedGather": ["changed"], "world_size": ["extra"]},
        ),
        ([("gather = RaggedGather.apply\n", "")], {"gather": ["missing"]}),
    ],
)  # fmt: skip
def test_an_edited_copy_names_what_differs(changes: list[tuple[str, str]], said: dict[str, list[str]]) -> None:
    """The definitions that differ and how, and no others; similar, but not wholly."""
    finding = copy_in(edited(*changes))
    assert finding.kind == "edited"
    assert differences(finding) == said
    assert 85 <= finding.similarity < 100
    assert finding.adapter == "mirasol"


def test_a_changed_definition_names_its_lines() -> None:
    """The lines that the variant does not have, and how many of its statements are gone."""
    text = edited(("    is_real = is_real.flatten()\n    wanted = is_real", "    wanted = is_real.view(-1)"))
    (difference,) = copy_in(text).differences
    line = text.splitlines().index("    wanted = is_real.view(-1).nonzero().flatten()") + 1
    assert difference.name == "gather_ragged"
    assert difference.line == text.splitlines().index("def gather_ragged(x, dim=0, lengths=None):") + 1
    assert difference.detail == f"84 % alike; not in the variant: line {line}; gone: 2 statements"


def test_the_nearest_variant_is_named() -> None:
    """Of two that are much alike, the one with fewer differences; of two that are the same, by their imports."""
    imported = FAMILY.replace("def is_given(value):\n    return value is not None\n", "from helpers import is_given\n")
    undefined = imported.replace("from helpers import is_given\n", "")
    part_only = edited(("    return own, torch.tensor(lengths)", "    return own"))
    variants = [
        *KNOWN,
        record("part only", None, parse(part_only)),
        record("imported", None, parse(imported)),
        record("undefined", None, parse(undefined)),
    ]
    for text, name in [(FAMILY, "ours"), (part_only, "part only"), (imported, "imported"), (undefined, "undefined")]:
        finding = found_in(text, variants)
        assert finding is not None
        assert (finding.variant, finding.kind) == (name, "exact")


def test_names_that_the_copy_imports_are_said() -> None:
    """A copy whose missing name was repaired is the variant still."""
    undefined = FAMILY.replace("def is_given(value):\n    return value is not None\n", "")
    finding = found_in("from .helpers import is_given\n" + undefined, [record("undefined", None, parse(undefined))])
    assert finding is not None
    assert finding.kind == "exact"
    assert finding.notes == ("is_given is imported from .helpers (undefined in the variant)",)


def test_a_copy_in_a_larger_file() -> None:
    """Said to be a part, with the lines of each definition; what is around it is no difference."""
    around = "".join(LARGER.format(number) for number in range(10))
    head, body = FAMILY.split("\n\n\n", 1)
    text = f"{head}{around}\n\n{body}{around}"
    finding = copy_in(text)
    assert (finding.kind, finding.variant, finding.similarity, finding.differences) == ("inlined", "ours", 100, ())
    lines = text.splitlines()
    for part in finding.definitions:
        assert re.match(rf"(def|class) {part.name}\b|{part.name} = ", lines[part.line - 1])
        assert part.end == len(lines) or lines[part.end] == ""

    without = copy_in(text.replace("hidden.relu()", "activation(hidden)").replace("def is_given", "def given"))
    assert [one.name for one in without.undefined] == ["is_given"]  # and not what is missing around the copy

    changed = copy_in(text.replace("ctx.lengths[:rank]", "ctx.lengths[rank:]"))
    assert (changed.kind, differences(changed)) == ("inlined", {"RaggedGather": ["changed"]})
    assert changed.similarity < 100


def test_a_copy_under_a_condition_or_in_a_function() -> None:
    """Wherever the definitions stand."""
    head, body = FAMILY.split("\n\n\n", 1)
    indented = re.sub(r"(?m)^(?=.)", "    ", body)
    assert copy_in(f"{head}\nif dist.is_available():\n{indented}").kind == "exact"
    finding = copy_in(f"{head}\ndef make():\n{indented}")
    assert [part.name for part in finding.definitions][:2] == ["make.is_given", "make.widen"]
    assert differences(finding) == {"gather": ["missing"]}


def test_a_copy_that_was_edited_everywhere() -> None:
    """No definition that matters is much like its own, but what there is in all comes from one variant."""
    text = edited(
        ("    longest = int(lengths.max())\n", "    longest = max(lengths.tolist())\n"),
        ("torch.arange(longest, device=x.device)", "torch.arange(longest)"),
        ("    is_real = is_real.flatten()\n", ""),
        ("is_real.nonzero().flatten()", "torch.where(is_real.reshape(-1))[0]"),
        ("together.index_select(dim, wanted), lengths", "torch.index_select(together, dim, wanted), lengths.tolist()"),
        ("        out, lengths = gather_ragged(x, dim, lengths)\n", "        out, sizes = gather_ragged(x, dim)\n"),
        ("        ctx.lengths = lengths.tolist()\n", "        ctx.save(sizes)\n"),
        ("        return out, lengths\n", "        return out\n"),
        ("        begin = sum(ctx.lengths[:rank])\n", "        begin, end = ctx.load(rank)\n"),
        ("grad.narrow(ctx.dim, begin, ctx.lengths[rank]), None, None", "grad[begin:end]"),
    )
    finding = copy_in(text)
    alike = {one.name: int(one.detail.partition(" ")[0]) for one in finding.differences if one.how == "changed"}
    assert finding.kind == "edited"
    assert set(alike) == {"gather_ragged", "RaggedGather"}
    assert max(alike.values()) < 60 < finding.similarity


def test_a_part_of_a_copy() -> None:
    """One of the definitions that matter is enough; the rest is missing."""
    start, stop = FAMILY.index("class RaggedGather"), FAMILY.index("class Gather(")
    finding = copy_in("import torch.distributed as dist\nfrom torch.autograd import Function\n" + FAMILY[start:stop])
    assert finding.kind == "edited"
    assert [one.name for one in finding.differences if one.how == "missing"] == [
        name for name in DEFINITIONS if name != "RaggedGather"
    ]
    assert [one.name for one in finding.undefined] == ["gather_ragged"]


# ---------------------------------------------------------------- relatives, and what is none


def test_a_relative_that_no_adapter_covers() -> None:
    """None of the code, all of the idea."""
    finding = copy_in(RELATIVE)
    assert (finding.kind, finding.adapter, finding.variant) == ("relative", None, None)
    assert finding.names == ["Spread"]


def test_our_own_baseline_is_a_relative() -> None:
    """What the benchmark has of the originals' idea is recognised, with helpers in functions around it."""
    (finding,) = scan([ROOT / "tools/src/shared_distributed_tools/bench/baseline.py"], fingerprints.shipped()).findings
    assert finding.kind == "relative"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(Function)", "(object)"),  # no gradient of its own
        ("        all_gather_object(counts, rows.size(0))\n", ""),  # sizes are not exchanged
        ("max(counts)", "8"),  # to a fixed size, not to the longest
        ("gradient[ctx.window]", "gradient"),  # nothing is cut out
        ("def backward", "def later"),
    ],
)
def test_what_lacks_a_part_of_the_idea_is_no_relative(old: str, new: str) -> None:
    """A gather of even tensors, without a gradient, or to a fixed size, is somebody else's business."""
    assert old in RELATIVE
    assert found_in(RELATIVE.replace(old, new)) is None


def test_nothing_false_in_other_peoples_code() -> None:
    """Torch's own gathers and sharding, and this project's core and adapters, are no copies."""
    distributed = Path(torch.__file__).parent / "distributed"
    others = [distributed / "nn", distributed / "fsdp", ROOT / "shared", ROOT / "packages"]
    seen = scan(others, fingerprints.shipped())
    assert seen.lines > 10_000
    assert seen.findings == []


def test_a_vendored_file_is_ours_already(tree: Path) -> None:
    """Said to be vendored, whatever its newlines; no copy to move."""
    header = Header("mirasol", "0.1.0", "0.1.0", source="0" * 64, body=hash_of(FAMILY.encode()))
    content = header.encode() + FAMILY.encode()
    (tree / "a.py").write_bytes(content)
    (tree / "b.py").write_bytes(content.replace(b"\n", b"\r\n"))
    (tree / "c.py").write_bytes(content.replace(b"# adapter: mirasol", b"# adapter: musiclm"))
    seen = scan([tree], KNOWN)
    assert [(one.kind, one.adapter) for one in seen.findings] == [("vendored", "mirasol")] * 2 + [("vendored", None)]
    assert seen.findings[2].notes == ("the header was edited; see `adapters check`",)
    assert run("scan", tree).exit_code == 0


# ---------------------------------------------------------------- undefined names


def undefined_in(text: str) -> list[str]:
    return [one.name for one in Scopes(ast.parse(text)).undefined()]


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    return later\nlater = 1",
        "def f():\n    global made\n    made = 1\ndef g():\n    return made",
        "class A:\n    x = 1\n    y = [_ for _ in (x,)] if __qualname__ else __class__\n",
        "def f(a, /, b, *c, d, **e):\n    return a, b, c, d, e, lambda g: (g, a)",
        "def f(x: Unknown) -> Unknown:\n    y: Unknown = 1\n    return x, y",
        "[(a, b) for a in range(2) for b in range(a) if (c := b)]\nprint(c)",
        "try:\n    unicode\nexcept NameError:\n    pass",
        "import sys\nif sys.version_info < (3,):\n    text = unicode",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    x = Late",
        "try:\n    pass\nexcept OSError as error:\n    print(error)",
        "match 1:\n    case {'a': x, **rest}:\n        print(x, rest)\n    case [y, *z] as w:\n        print(y, z, w)",
        "import a.b.c\nimport d.e as f\nfrom . import g\nprint(a, f, g, __file__, __name__, _('text'))",
        "def f():\n    x = 1\n    def g():\n        nonlocal x\n        x = 2\n    return g",
        "with open('a') as (b, *c):\n    for d.e, f in b:\n        print(c, f)\nd = 1",
        "x = 1\ndel x\nprint(x)",
        "def f():\n    import late as l\n    class C(l.C):\n        def m(self):\n            return __class__, l",
    ],
)  # fmt: skip
def test_defined_names_are_not_reported(text: str) -> None:
    """Every way in which Python binds a name, and names that need not exist."""
    assert undefined_in(text) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f():\n    return missing(1)", ["missing"]),
        ("class A:\n    x = 1\n    def f(self):\n        return x", ["x"]),
        ("def f():\n    inside = 1\ndef g():\n    return inside", ["inside"]),
        ("[a for a in range(3)]\nprint(a)", ["a"]),
        ("class A:\n    x = 1\n    y = [x for _ in range(2)]", ["x"]),
        ("def f(a=first, *, b=second): pass", ["first", "second"]),
        ("@decorated\nclass A(Base, metaclass=Meta): pass", ["Base", "Meta", "decorated"]),
        ("try:\n    x = missing\nexcept OSError:\n    pass", ["missing"]),
        ("def f():\n    global never\n    return never", ["never"]),
        ("try:\n    def f():\n        return missing\nexcept NameError:\n    pass", ["missing"]),
        ("def f():\n    return lambda a=b: a + c", ["b", "c"]),
    ],
)
def test_undefined_names_are_found(text: str, names: list[str]) -> None:
    """By Python's rules of scope, not by whether the name stands somewhere."""
    assert sorted(undefined_in(text)) == names


def test_undefined_names_of_a_copy(tree: Path) -> None:
    """Each once, where it is used first; a star import, or names made at run time, leave it open."""
    text = edited(
        ("from torch.nn import functional\n", ""),
        ("import torch.distributed as dist\n", ""),
        ("def is_given", "def given"),
    )
    lines = text.splitlines()
    assert {one.name: one.line for one in copy_in(text).undefined} == {
        name: next(number for number, line in enumerate(lines, 1) if use in line)
        for name, use in [("functional", "functional.pad"), ("dist", "dist."), ("is_given", "is_given(")]
    }
    for line, why in [("from .helpers import *\n", "a star import"), ("globals().update(a=1)\n", "makes names")]:
        finding = copy_in(line + text)
        assert finding.undefined == ()
        assert any("cannot tell" in note and why in note for note in finding.notes)


# ---------------------------------------------------------------- files as they come


def test_a_file_that_does_not_parse_is_read_in_parts() -> None:
    """What can be read is compared, and it is said that the rest is not."""
    finding = copy_in(f"{LOST_BRACKET}\ntry:\n    import einops\nexcept ImportError:\n    einops = None\n")
    assert finding.kind == "edited"
    assert finding.differences[0][:3] == ("widen", "missing", "it may be in a part that cannot be read")
    assert len(finding.differences) == 1
    lines = LOST_BRACKET.splitlines()
    assert all(re.search(rf"\b{part.name}\b", lines[part.line - 1]) for part in finding.definitions)
    (note,) = [note for note in finding.notes if note.startswith("best effort: does not parse: ")]
    assert note.endswith("(line 17); read piece by piece, without 1 that cannot be read")
    assert any(note.startswith("undefined names: cannot tell") for note in finding.notes)


@pytest.mark.parametrize(
    "deep",
    ["-" * 50_000 + "1", "x" + ".x" * 50_000, "+".join("1" * 50_000), "(" * 300 + ")" * 300, "f" + "()" * 30_000],
    ids=["signs", "attributes", "sum", "brackets", "calls"],
)
def test_code_that_is_nested_too_deeply_hides_nothing_else(deep: str, tree: Path) -> None:
    """A copy beside it is found; alone it is passed over, and said so."""
    (tree / "beside.py").write_text(f"{FAMILY}\nx = {deep}\n")
    (tree / "alone.py").write_text(f"gather = {deep}\n")
    seen = scan([tree], KNOWN)
    assert [(one.path, one.kind) for one in seen.findings] == [("beside.py", "exact")]
    assert [Path(one.path).name for one in seen.passed] == ["alone.py"]


def test_files_in_odd_encodings() -> None:
    """By the cookie, the mark at the start, or neither; spelled in another form of the same letters."""
    cookie = "# -*- coding: latin-1 -*-\n# \xe9\n"
    spelled = FAMILY.replace("dist", "\uff44ist").replace("ather", "\uff41ther")
    utf7 = FAMILY.replace("dist", "d+AGk-st").replace("gather", "g+AGE-ther").replace("+ [0", "+- [0")
    for content in [
        (cookie + FAMILY).encode("latin-1"),
        FAMILY.encode("utf-8-sig"),
        spelled.encode(),
        ("# coding: utf-7\n" + utf7).encode(),
    ]:
        text, problem = decode(content)
        assert problem == ""
        assert may_hold_the_family(text)
        assert copy_in(text).kind == "exact"


def test_what_cannot_be_read_is_passed_over(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binary, too large, unreadable, no plain file, a wrong encoding: each with its reason, none fatal."""
    (tree / "binary.py").write_bytes(b"gather\0")
    (tree / "large.py").write_text("# gather\n" * 2_000)
    (tree / "locked.py").write_text("gather")
    (tree / "nonsense.py").write_text("# coding: nonsense\ngather = 1\n")
    (tree / "good.py").write_text(FAMILY)
    (tree / "elsewhere.txt").write_text(FAMILY)
    expected = {
        "binary.py": "binary: holds null bytes",
        "large.py": "larger than 0 MiB",
        "locked.py": "cannot be read: Permission denied",
        "nonsense.py": "unknown encoding: nonsense",
    }
    if hasattr(os, "mkfifo"):
        os.mkfifo(tree / "pipe.py")
        expected["pipe.py"] = "not a plain file"
    monkeypatch.setattr("shared_distributed_tools.migration.walk.LARGEST", 10_000)
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "locked.py" and sys._getframe(1).f_code.co_name == "read_file":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    seen = scan([tree], KNOWN)
    assert {Path(one.path).name: one.why for one in seen.passed} == expected
    assert [one.path for one in seen.findings] == ["good.py"]


def test_links_are_not_followed(tree: Path) -> None:
    """A loop ends nowhere; what lies in the tree is found once, what lies outside is said."""
    outside = tree.parent / "outside"
    outside.mkdir()
    (outside / "copy.py").write_text(FAMILY)
    (tree / "package").mkdir()
    (tree / "package" / "copy.py").write_text(FAMILY)
    (tree / "package" / "loop").symlink_to(tree, target_is_directory=True)
    (tree / "same.py").symlink_to(tree / "package" / "copy.py")
    (tree / "self.py").symlink_to("self.py")
    (tree / "other").symlink_to(outside, target_is_directory=True)
    seen = scan([tree], KNOWN)
    assert [one.path for one in seen.findings] == ["package/copy.py"]
    assert {Path(one.path).name: one.why for one in seen.passed} == {
        "other": "a link that leads out of what is scanned",
        "self.py": "a link that leads nowhere",
    }
    assert len(scan([tree, outside], KNOWN).findings) == 2
    assert len(scan([tree, tree / "package"], KNOWN).findings) == 1
    assert len(scan([tree / "other"], KNOWN).findings) == 1


def test_installed_packages_are_scanned_when_asked_for(tree: Path) -> None:
    """A project's environment is not the project; caches and git's own files never are."""
    for place in ("env/lib/site-packages/a", ".git", "__pycache__", "build"):
        (tree / place).mkdir(parents=True)
        (tree / place / "copy.py").write_text(FAMILY)
    (tree / "env" / "pyvenv.cfg").touch()
    seen = scan([tree], KNOWN)
    assert [one.path for one in seen.findings] == ["build/copy.py"]
    assert [Path(one.path).name for one in seen.passed] == ["env"]
    for inside in ("env", "env/lib/site-packages", "env/lib/site-packages/a"):
        assert [Path(one.path).name for one in scan([tree / inside], KNOWN).findings] == ["copy.py"]


# ---------------------------------------------------------------- the commands


def test_exit_codes(tree: Path, known: Path) -> None:
    """0 for nothing, 20 for copies, 21 where something could hide one, 2 for a path that is not there."""
    (tree / "plain.py").write_text("print('nothing here')\n")
    (tree / "nowhere.py").symlink_to("gone.py")  # holds nothing
    assert run("scan", tree, "--known", known).exit_code == 0
    (tree / "broken.py").write_text("gather = (\n")
    assert run("scan", tree, "--known", known).exit_code == 21
    (tree / "copy.py").write_text(REWRITTEN)
    assert run("scan", tree, "--known", known).exit_code == 20
    assert run("scan", tree / "nowhere").exit_code == 2
    help_text = run("--help").output
    assert "20  scan: copies found" in help_text
    assert "21  scan: none found" in help_text


def test_a_file_is_found_under_any_name(tree: Path, known: Path) -> None:
    """By structure: whatever it and its folder are called; a file that is given, with any suffix."""
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "er" / "zzz.py").write_text(REWRITTEN)
    notes = tree.parent / "notes.txt"
    notes.write_text(REWRITTEN)
    output = run("scan", tree, notes, "--known", known).output
    assert output.count("exact: variant ours (adapter mirasol)") == 2
    assert f"{tree.as_posix()}/deep/er/zzz.py: exact" in output
    assert output.count("call sites: give the folder around the file") == 1


def test_the_output_is_stable_and_sorted(tree: Path, known: Path) -> None:
    """The same bytes for the same tree, in whatever order the paths are given, and no time in them."""
    for name in ("b", "a", "c"):
        (tree / name).mkdir()
        (tree / f"{name}bc.py").write_text(FAMILY)
        (tree / name / "copy.py").write_text(FAMILY)
        (tree / name / "broken.py").write_text("gather = (\n")
    for form in ([], ["--json"]):
        one = run("scan", tree / "b", tree / "a", tree / "c", "--known", known, *form).stdout
        other = run("scan", tree / "c", tree / "b", tree / "a", tree / "a", "--known", known, *form).stdout
        assert one == other
        places = [one.index(f"tree/{name}") for name in "abc"]
        assert places == sorted(places)
    whole = run("scan", tree, "--known", known).stdout
    found = [line.partition(": ")[0] for line in whole.splitlines() if ": exact" in line]
    assert len(found) == 6
    assert found == sorted(found)
    assert "6 copies found in 9 files, 471 lines\n" in whole
    assert "1 copy found in 1 file, " in run("scan", tree / "abc.py", "--known", known).stdout


def test_json_says_what_the_text_says(tree: Path, known: Path) -> None:
    """Everything that a script may want, by name."""
    (tree / "copy.py").write_text(edited(("ctx.lengths[:rank]", "ctx.lengths[rank:]")))
    (tree / "broken.py").write_text("gather = (\n")
    answer = json.loads(run("scan", tree, "--known", known, "--json").stdout)
    (finding,) = answer["findings"]
    assert {key: finding[key] for key in ("path", "kind", "variant", "adapter", "similarity")} == {
        "path": "copy.py",
        "kind": "edited",
        "variant": "ours",
        "adapter": "mirasol",
        "similarity": 97,
    }
    assert [(one["name"], one["how"]) for one in finding["differences"]] == [("RaggedGather", "changed")]
    assert [one["name"] for one in finding["definitions"]] == DEFINITIONS
    assert [Path(one["path"]).name for one in answer["passed_over"]] == ["broken.py"]
    assert (answer["files"], answer["exit_code"]) == (2, 20)


def test_nothing_that_is_looked_at_is_imported(tree: Path, known: Path) -> None:
    """Code at the top level of a copy, of a package around it and of a caller stays text."""
    boom = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"
    (tree / "__init__.py").write_text(boom)
    (tree / "copy.py").write_text(boom + FAMILY)
    (tree / "caller.py").write_text(boom + "from .copy import Gather\n")
    assert run("scan", tree, "--known", known).exit_code == 20
    assert sorted(path.name for path in tree.iterdir()) == ["__init__.py", "caller.py", "copy.py"]


def test_call_sites_are_listed(tree: Path, known: Path) -> None:
    """Imports, objects built and calls, with file and line; a copy's own calls are not among them."""
    package = tree / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "spread.py").write_text(FAMILY)
    (package / "model.py").write_text(
        "from .spread import Gather\n\n\nclass Model:\n    def __init__(self):\n        self.all = Gather(dim=1)\n\n"
        "    def forward(self, x):\n        y, lengths = self.all(x)\n        return y\n"
    )
    (finding,) = json.loads(run("scan", tree, "--known", known, "--json").stdout)["findings"]
    sites = [(site["path"], site["line"], site["kind"], site["name"]) for site in finding["sites"]]
    assert sites == [
        ("package/model.py", 1, "import", "Gather"),
        ("package/model.py", 6, "build", "Gather"),
        ("package/model.py", 9, "call", "Gather"),
    ]
    assert "call package/model.py:9: y, lengths = self.all(x)" in run("scan", tree, "--known", known).output

    start = FAMILY.index("def widen")
    inside = re.sub(r"(?m)^(?=.)", "    ", FAMILY[start:])
    (package / "spread.py").write_text(f"{FAMILY[:start]}if dist.is_available():\n{inside}")
    (finding,) = json.loads(run("scan", tree, "--known", known, "--json").stdout)["findings"]
    assert "package/spread.py" not in [site["path"] for site in finding["sites"]]


def test_progress_is_for_terminals(tree: Path) -> None:
    """A bar on standard error where that is a terminal; nothing of it in a log, or in what is piped."""
    (tree / "a.py").touch()
    plain, terminal = run("scan", tree), run("scan", tree, FORCE_COLOR="1", COLUMNS="100")
    assert re.fullmatch(r"took \d+\.\d s\n", plain.stderr)
    assert "scanning" in terminal.stderr
    assert plain.stdout == terminal.stdout


def test_a_fingerprint_is_added_once(tree: Path, known: Path) -> None:
    """A second time changes nothing; another one goes beside it; the same facts give the same bytes."""
    before = known.read_bytes()
    (tree / "copy.py").write_text(FAMILY)
    (tree / "other.py").write_text(edited(("dim=0, lengths=None", "dim=-1, lengths=None")))
    again = run("fingerprint", tree / "copy.py", "--name", "ours", "--adapter", "mirasol", "--into", known)
    assert (again.exit_code, known.read_bytes()) == (0, before)
    assert "already in" in again.output
    assert run("fingerprint", tree / "other.py", "--name", "a fork", "--into", known).exit_code == 0
    assert [(one.name, one.adapter) for one in fingerprints.load(known)] == [("a fork", None), ("ours", "mirasol")]
    output = run("scan", tree, "--known", known).output
    assert "copy.py: exact: variant ours (adapter mirasol)" in output
    assert "other.py: exact: variant a fork (no adapter covers it)" in output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LOST_BRACKET, "a fingerprint is taken from a file that parses"),
        ("def gather(x):\n    return x\n", "scan would never find it"),
        ("\0", "binary"),
    ],
)
def test_a_file_without_a_fingerprint_is_refused(tree: Path, text: str, said: str) -> None:
    """Exit code 1, why, and nothing written."""
    (tree / "copy.py").write_text(text)
    result = run("fingerprint", tree / "copy.py", "--name", "x", "--into", tree / "known.json")
    assert result.exit_code == 1
    assert said in result.output
    assert not (tree / "known.json").exists()


def test_where_a_fingerprint_may_not_go_is_refused(tree: Path, known: Path) -> None:
    """Not over another variant, not into an installed package, not from a file that is not there."""
    before = known.read_bytes()
    (tree / "copy.py").write_text(edited(("dim=0, lengths=None", "dim=-1, lengths=None")))
    taken = run("fingerprint", tree / "copy.py", "--name", "ours", "--into", known)
    installed = run("fingerprint", tree / "copy.py", "--name", "x", "--into", tree / "site-packages" / "known.json")
    absent = run("fingerprint", tree / "nowhere.py", "--name", "x", "--into", known)
    assert [one.exit_code for one in (taken, installed, absent)] == [1, 1, 1]
    assert "another variant called 'ours'" in taken.output
    assert "installed package" in installed.output
    assert "is not there" in absent.output
    assert known.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "\xff",
        '{"format": 1}',
        '{"format": 2, "variants": []}',
        '{"format": 1, "variants": [{"name": "x"}]}',
        '{"format": 1, "variants": [{"name": "x", "adapter": null, "outside": {}, "definitions": [{"name": 1}]}]}',
    ],
)
def test_a_damaged_file_of_fingerprints_is_refused(tree: Path, content: str) -> None:
    """One line that names the file and says how to make one; no traceback."""
    (tree / "known.json").write_bytes(content.encode("latin-1"))
    result = run("scan", tree, "--known", tree / "known.json")
    assert result.exit_code == 1
    assert "known.json" in result.output
    assert "`adapters fingerprint`" in result.output or "upgrade" in result.output


def test_a_survey_without_sites_of_unreadable_trees(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the call sites cannot be looked for, the copy is reported all the same."""
    (tree / "copy.py").write_text(FAMILY)

    def refuse(root: Path) -> None:
        raise PermissionError(13, "Permission denied", "other.py")

    monkeypatch.setattr(survey, "SourceTree", refuse)
    (finding,) = scan([tree], KNOWN).findings
    assert finding.kind == "exact"
    assert "call sites: cannot tell" in finding.notes[-1]

# SPDX-License-Identifier: MIT
"""What `adapters scan` finds in a tree, and what it says about it."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from shared_distributed_tools.catalog import ADAPTERS, core_names
from shared_distributed_tools.errors import ToolError
from shared_distributed_tools.render import render
from shared_distributed_tools.repo.tree import Tree
from shared_distributed_tools.scan import fingerprint, sisters, survey
from shared_distributed_tools.scan.fingerprint import definitions, known_originals, record, with_original
from shared_distributed_tools.scan.survey import Finding, find_copy, scan
from tests.downstream.commands import run
from tests.downstream.copies import DEFINITIONS, RELATIVE, REWRITTEN, SYNTAX
from tests.downstream.old_copies import RIGHT, WITHOUT_NAMES, copy_with
from tests.downstream.projects import STEPS
from tests.downstream.trees import committed, package, write_files

ROOT = Path(__file__).resolve().parents[2]
KNOWN = {"mirasol": record(RIGHT)}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that knows our own family, and nothing else."""
    monkeypatch.setattr(survey, "known_originals", lambda: KNOWN)


Look = Callable[[str | bytes], Finding]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Looks at one text as a file; it has to be a copy."""

    def at(text: str | bytes) -> Finding:
        (tmp_path / "some.py").write_bytes(text if isinstance(text, bytes) else text.encode())
        finding = find_copy(Tree(tmp_path), "some.py")
        assert finding is not None
        return finding

    return at


def differences(finding: Finding) -> dict[str, list[str]]:
    said: dict[str, list[str]] = {}
    for one in finding.differences:
        said.setdefault(one.name, []).append(one.how)
    return said


def edited(*changes: tuple[str, str]) -> str:
    text = RIGHT
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


# ------------------------------------------------------------------ what is known


def test_the_originals_are_known_and_no_source_text_is_shipped() -> None:
    """Each by its adapter; names and hashes only. The flat fork has musiclm's definitions."""
    known = known_originals()
    assert [*known] == [*ADAPTERS]
    for found in known.values():
        assert sum(one.tells for one in found.values()) == 2
        for name, one in found.items():
            assert name.isidentifier()
            assert re.fullmatch(r"[0-9a-f]{8}( [0-9a-f]{8})*", one.statements)
            assert re.fullmatch(r"[0-9a-f]{16}", one.hash)


def test_an_original_can_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of known.json with one more file in it, or with another form of one that is in it."""
    before, file = known_originals(), tmp_path / "original.py"
    file.write_text(RIGHT)
    monkeypatch.setattr(fingerprint, "KNOWN", tmp_path / "known.json")
    for name, number in (("ours", len(before) + 1), ("musiclm", len(before))):
        (tmp_path / "known.json").write_text(with_original(name, file))
        after = known_originals.__wrapped__()
        assert (after[name], len(after)) == (KNOWN["mirasol"], number)


@pytest.mark.parametrize("text", ["def gather(x):\n    return x\n", "def f(x):\n" + "    x = x + 1\n" * 12])
def test_a_file_that_scan_could_not_recognise_is_refused(text: str) -> None:
    """Nothing in it gathers at some length."""
    with pytest.raises(ToolError, match="scan would never find it"):
        record(text)


# ------------------------------------------------------------------ hashes

PINNED = "6e6b3b286dcdac9f 00b8bcc1d0c9d274 c97dca9527e43eef 5da64cdf0515c4dd aa9ff49bd3bb0063"
PINNED_SYNTAX = "0d61ef64274d4f36"


def test_hashes_are_those_of_every_python() -> None:
    """Pinned: what one version of Python records, the others recognise. If this fails, what is shipped is void."""
    assert " ".join(one.hash for one in KNOWN["mirasol"].values()) == PINNED
    (definition,) = definitions(ast.parse(SYNTAX))
    assert definition.known.hash == PINNED_SYNTAX


TEMPLATE = """
import torch
import torch.distributed as dist
from torch import distributed as td
from torch.distributed import get_rank
def definition(x, y):
    z = 0
    return {}
"""


def hash_of(expression: str) -> str:
    (definition,) = definitions(ast.parse(TEMPLATE.format(expression)))
    return definition.known.hash


@pytest.mark.parametrize(
    ("one", "is_same", "other"),
    [
        ("x + y", True, "(x)+( y )"),
        ("'a' 'b'", True, '"ab"'),
        ("torch.distributed.get_rank()", True, "dist.get_rank()"),
        ("torch.distributed.get_rank()", True, "td.get_rank()"),
        ("torch.distributed.get_rank()", True, "get_rank()"),
        ("torch.nn.functional.pad(x)", True, "F.pad(x)"),  # what F means where nobody imported it
        ("[i for i in x]", True, "[j for j in x]"),
        ("0\n    from helpers import f\n    return f(x)", True, "0\n    return f(x)"),
        ("0\n    a: int = 1", True, "0\n    b = 1"),
        ("x + y", False, "y + x"),
        ("x + y", False, "x - y"),
        ("x[0]", False, "x[1]"),
        ("1", False, "1.0"),
        ("1", False, "True"),
        ("'1'", False, "b'1'"),
        ("f(x, y=1)", False, "f(x, z=1)"),
        ("x.max()", False, "x.min()"),
        ("x[:y]", False, "x[y:]"),
        ("[x for x in y]", False, "{x for x in y}"),
        ("lambda a, b: a", False, "lambda a, b: b"),
        ("x if y else None", False, "None if y else x"),
        ("0\n    a = b = 1\n    return a", False, "0\n    a = b = 1\n    return b"),
        ("0\n    if x:\n        y()", False, "0\n    if x: pass\n    y()"),
        ("0\n    if x:\n        y()", False, "0\n    if x: z\n    else:\n        y()"),
    ],
)
def test_the_same_code_has_one_hash(one: str, is_same: bool, other: str) -> None:
    """Layout, quotes, annotations, the style of imports and the names of local variables do not count.

    Values, operators, attributes, keywords, blocks and which name goes where do.
    """
    assert (hash_of(one) == hash_of(other)) is is_same


# ------------------------------------------------------------------ copies


LATIN = f"# -*- coding: latin-1 -*-\n# \xe9\n{RIGHT}".encode("latin-1")


@pytest.mark.parametrize(
    "text", [RIGHT, REWRITTEN, RIGHT.replace("\n", "\r\n"), "\f" + RIGHT, RIGHT.encode("utf-8-sig"), LATIN]
)
def test_an_exact_copy(look: Look, text: str | bytes) -> None:
    """Comments, docstrings, formatting, local names, annotations, imports, order and encoding do not matter."""
    finding = look(text)
    assert (finding.kind, finding.similarity, finding.differences) == ("exact", 100, ())
    assert finding.adapter == "mirasol"
    assert [part.name for part in finding.definitions] == DEFINITIONS
    assert finding.undefined == ()


SWAPPED = ("torch.cat(kept, dim)", "torch.cat(kept[::-1], dim)")
# half of an original is a copy, though the definition that tells most is rewritten
HALF = edited(
    ("ctx.dim, ctx.sizes, ctx.all_reduce_grads = ", "ctx.kept = "),
    ("if ctx.all_reduce_grads:", "if ctx.kept[2]:"),
    ("dist.all_reduce(grads)", "add_up(grads)"),
    ("grads.split(ctx.sizes, ctx.dim)", "grads.split(*ctx.kept[:2])"),
)
SIZE = "@cache\ndef world_size():\n    return dist.get_world_size()\n\n\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (copy_with("a wrong slice"), {"AllGatherFunction": ["changed"]}),
        (copy_with("sizes as a list"), {"AllGather": ["changed"]}),
        (copy_with("another default"), {"all_gather_variable_dim": ["changed"]}),
        # by keyword only, and another name that callers pass
        (edited(("(self, dim, *, all", "(self, *, dim, all")), {"AllGather": ["changed"]}),
        (edited(("_dim(t):", "_dim(x):"), ("mine = t.", "mine = x.")), {"all_gather_same_dim": ["changed"]}),
        (edited(("def lengthen", "def longer")), {"longer": ["renamed"]}),
        (edited(("def all_gather_variable_dim", "def ragged"), SWAPPED), {"ragged": ["renamed", "changed"]}),
        # the same statements with other variables
        (edited(("all_gather(parts, mine)", "all_gather(mine, parts)")), {"all_gather_same_dim": ["changed"]}),
        (
            edited(("range(dist.get_world_size())", "range(world_size())"), ("def lengthen", f"{SIZE}def lengthen")),
            {"all_gather_same_dim": ["changed"], "world_size": ["extra"]},
        ),
        (RIGHT[: RIGHT.index("class AllGather(")], {"AllGather": ["missing"]}),
        (HALF[: HALF.index("class AllGather(")], {"AllGatherFunction": ["changed"], "AllGather": ["missing"]}),
    ],
)
def test_an_edited_copy_names_what_differs(look: Look, text: str, said: dict[str, list[str]]) -> None:
    """The definitions that differ and how, and no others; similar, but not wholly."""
    finding = look(text)
    assert (finding.kind, finding.adapter) == ("edited", "mirasol")
    assert differences(finding) == said
    assert (50 if "add_up" in text else 80) <= finding.similarity < (80 if "add_up" in text else 100)


def test_a_changed_definition_names_its_lines(look: Look) -> None:
    """The lines that the original does not have, how many of its statements are missing."""
    text = edited(("    sizes = torch.as_tensor(sizes)\n", ""), SWAPPED)
    (difference,) = look(text).differences
    line = text.splitlines().index("    return torch.cat(kept[::-1], dim), sizes") + 1
    assert difference.line == text.splitlines().index("def all_gather_variable_dim(t, dim=0, sizes=None):") + 1
    assert difference.detail == f"not in the original: lines {line}; statements missing: 2"


def test_the_nearest_original_is_named(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that are much alike, the one with fewer differences; a definition stands for one of the original's."""
    swapped = edited(SWAPPED)
    monkeypatch.setattr(survey, "known_originals", lambda: {**KNOWN, "swapped": record(swapped)})
    for text, name in [(RIGHT, "mirasol"), (swapped, "swapped")]:
        finding = look(text)
        assert (finding.adapter, finding.kind) == (name, "exact")
    start, stop = RIGHT.index("def lengthen"), RIGHT.index("def all_gather_variable_dim")
    twice = record(RIGHT + RIGHT[start:stop].replace("lengthen", "lengthen_again"))
    monkeypatch.setattr(survey, "known_originals", lambda: {"twice": twice})
    assert differences(look(RIGHT)) == {"lengthen_again": ["missing"]}


def test_a_copy_in_a_larger_file(look: Look) -> None:
    """Said to be a part, with the lines of each definition; what is around it is no difference."""
    head, body = RIGHT.split("\n\n\n", 1)
    text = f"{head}{STEPS}\n\n{body}{STEPS}"
    finding = look(text)
    assert (finding.kind, finding.adapter, finding.similarity, finding.differences) == ("inlined", "mirasol", 100, ())
    lines = text.splitlines()
    for part in finding.definitions:
        assert re.match(rf"(def|class) {part.name}\b", lines[part.line - 1])
        assert part.end == len(lines) or lines[part.end] == ""

    without = look(text.replace("y = y * 2", "y = activation(y)").replace("def lengthen", "def longer"))
    assert [one.name for one in without.undefined] == ["lengthen"]  # and not what is missing around the copy

    changed = look(text.replace("[dist.get_rank()]", "[0]"))
    assert (changed.kind, differences(changed)) == ("inlined", {"AllGatherFunction": ["changed"]})
    assert changed.similarity < 100


def test_a_part_of_a_copy_under_a_condition(look: Look) -> None:
    """One of the definitions that tell is enough; the rest is missing. Definitions under `if` or `try` count."""
    start, stop = RIGHT.index("class AllGatherFunction"), RIGHT.index("class AllGather(")
    imports = "import torch\nimport torch.distributed as dist\nfrom torch.autograd import Function\n"
    indented = re.sub(r"(?m)^(?=.)", "    ", RIGHT[start:stop])
    finding = look(f"{imports}if dist.is_available():\n{indented}")
    assert finding.kind == "edited"
    assert differences(finding) == {name: ["missing"] for name in DEFINITIONS if name != "AllGatherFunction"}
    assert [one.name for one in finding.undefined] == ["all_gather_variable_dim"]


def test_undefined_names_of_a_copy(look: Look) -> None:
    """Each once, where it is used first; a star import leaves it open."""
    text = edited(("import torch.distributed as dist\n", ""), ("def lengthen", "def longer"))
    lines = text.splitlines()
    assert {one.name: one.line for one in look(text).undefined} == {
        name: next(number for number, line in enumerate(lines, 1) if use in line)
        for name, use in [("dist", "dist."), ("lengthen", "lengthen(")]
    }
    finding = look("from .helpers import *\n" + text)
    assert (finding.undefined, len(finding.notes)) == ((), 1)


# ------------------------------------------------------------------ forks that mended themselves

EXISTS = "def exists(val):\n    return val is not None\n"
PAD = "def pad_dim_to(t, length, dim = 0):\n    "
MISSING = "missing = length - t.shape[dim]\n    "
PADS = [
    "pad_length = length - t.shape[dim]\n    zero_pairs = (-dim - 1) if dim < 0 else (t.ndim - dim - 1)\n"
    "    return F.pad(t, (*((0, 0) * zero_pairs), 0, pad_length))\n",
    f"{MISSING}if missing <= 0:\n        return t\n    pads = [0, 0] * (t.dim() - dim - 1) + [0, missing]\n"
    "    return torch.nn.functional.pad(t, pads, value = 0)\n",
    '"""Zeros up to a length."""\n    shape = list(t.shape)\n    shape[dim] = length - t.size(dim)\n'
    "    return torch.cat([t, t.new_zeros(shape)], dim = dim)\n",
    f"{MISSING}size = (*t.shape[:dim], missing, *t.shape[dim + 1:])\n"
    "    zeros = torch.zeros(size, dtype = t.dtype, device = t.device)\n    return torch.cat((t, zeros), dim)\n",
]
OTHERS = {  # not with the meaning that their names have, or not certainly
    "exists": [
        EXISTS.replace("is not", "is"),
        EXISTS.replace("return", "print(val)\n    return"),
        EXISTS.replace("def exists(val)", "def exists(val, *more)"),
        f"@log\n{EXISTS}",
        "class exists:\n    pass\n",
    ],
    "pad_dim_to": [
        PAD + PADS[0].replace("0, pad_length", "pad_length, 0"),
        PAD + PADS[0].replace("length - t", "length + 1 - t"),
        PAD + PADS[0].replace("pad_length =", "log(t)\n    pad_length ="),
        PAD + PADS[1].replace("return t\n", "t = t * 2\n"),
        PAD + PADS[2].replace("[t, t.new_zeros(shape)]", "[t.new_zeros(shape), t]"),
        PAD + "return t\n",
    ],
}


def mended(*helpers: str) -> str:
    """A copy that defines what its original forgot."""
    head, body = WITHOUT_NAMES.split("\n\n\n", 1)
    return "\n\n\n".join([head, *helpers, body])


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known original that uses `exists` and `pad_dim_to` and defines neither."""
    monkeypatch.setattr(survey, "known_originals", lambda: {"mirasol": record(WITHOUT_NAMES)})


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("exists", [EXISTS, EXISTS.replace("(val):", '(val: Any) -> bool:\n    """Is it there?"""')])
def test_a_fork_that_mended_itself_is_exact(look: Look, exists: str, pad: str) -> None:
    """It defines what its original uses and lacks, with the meaning that the name has: no edit would be lost."""
    finding = look(mended(exists, f"{PAD}{pad}"))
    assert (finding.kind, finding.similarity, finding.differences, finding.undefined) == ("exact", 100, (), ())
    assert {"exists", "pad_dim_to"} <= {*finding.names}  # which another file may import
    assert look(mended(exists)).kind == "exact"


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in OTHERS.items() for text in texts])
def test_a_helper_with_another_meaning_is_an_edit(look: Look, name: str, text: str) -> None:
    """However small: what it does would be lost."""
    assert differences(look(mended(text))) == {name: ["extra"]}


@pytest.mark.usefixtures("forgetful")
def test_a_helper_that_the_copy_does_not_use_is_an_edit(look: Look) -> None:
    """And one that the original has, under the same name."""
    assert differences(look(WITHOUT_NAMES + EXISTS.replace("exists", "is_given"))) == {"is_given": ["extra"]}
    assert differences(look(RIGHT + EXISTS))["exists"] == ["extra"]


# ------------------------------------------------------------------ relatives, and what is none


def test_a_relative_that_no_adapter_covers(look: Look) -> None:
    """None of the code, all of the idea; in helpers too."""
    finding = look(RELATIVE)
    assert (finding.kind, finding.adapter) == ("relative", None)
    assert finding.names == ["Spread"]
    head, body = RELATIVE.split("class Spread", 1)
    start, stop = body.index("        counts ="), body.index("        ctx.window")
    helper = "def collected(rows, world):\n" + body[start:stop] + "        return everything, counts\n\n\n"
    call = "        everything, counts = collected(rows, world)\n"
    assert look(f"{head}{helper}class Spread{body[:start]}{call}{body[stop:]}").names == ["Spread"]


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
def test_what_lacks_a_part_of_the_idea_is_no_relative(tmp_path: Path, old: str, new: str) -> None:
    """A gather of even tensors, without a gradient, or to a fixed size, is somebody else's business."""
    assert old in RELATIVE
    (tmp_path / "some.py").write_text(RELATIVE.replace(old, new))
    assert scan([tmp_path]).findings == []


def test_nothing_false_in_other_peoples_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own gathers and sharding, and this project's core and adapters, are no copies."""
    monkeypatch.setattr(survey, "known_originals", known_originals)
    distributed = Path(torch.__file__).parent / "distributed"
    others = [distributed / "nn", distributed / "fsdp", ROOT / "shared", ROOT / "packages"]
    found = scan(others)
    assert found.files > 50
    assert found.findings == []


def test_a_vendored_file_is_ours_already(look: Look, tmp_path: Path) -> None:
    """Said to be vendored, whatever its newlines; no copy to move. One with a damaged header too."""
    text = render("mirasol")
    for content, adapter in (
        *((text, "mirasol"), (text.replace("\n", "\r\n"), "mirasol")),
        (text.replace("sha256 ", "sha512 ", 1), None),
    ):
        finding = look(content)
        assert (finding.kind, finding.adapter) == ("vendored", adapter)
        assert run("scan", tmp_path).exit_code == 0


@pytest.mark.parametrize(
    "deep",
    ["-" * 50_000 + "1", "x" + ".x" * 50_000, "+".join("1" * 50_000), "(" * 300 + ")" * 300, "f" + "()" * 30_000],
)
def test_code_that_is_nested_too_deeply_is_named(tmp_path: Path, deep: str) -> None:
    """It could hold a copy, and the other files are still read."""
    write_files(tmp_path, {"deep.py": f"gather = {deep}\n", "copy.py": RIGHT})
    found = scan([tmp_path])
    assert [(one.path, one.kind) for one in found.findings] == [("copy.py", "exact")]
    assert [Path(one.path).name for one in found.unread] == ["deep.py"]


@pytest.mark.parametrize(
    "code", ["def f(x, x): pass\n", "def f(x):\n    global x\n", "nonlocal x\n", "def f():\n    x = 1\n    global x\n"]
)
def test_a_copy_that_python_would_refuse_is_not_read(tmp_path: Path, code: str) -> None:
    """The parser lets it pass, the compiler does not: listed, and the scan goes on."""
    write_files(tmp_path, {"a.py": RIGHT + code, "copy.py": RIGHT})
    result = run("scan", tmp_path)
    assert result.exit_code == 2, result.output
    assert "a.py: does not compile" in result.output
    assert "copy.py: exact" in result.output
    for command in ("plan", "status", "check", "migrate --to vendored"):
        answer = run(*command.split(), tmp_path)
        assert isinstance(answer.exception, SystemExit | None), answer.exception


# ------------------------------------------------------------------ the command


def test_exit_codes(tmp_path: Path) -> None:
    """0 for nothing, 1 for copies, 2 if a file that could hold one was not read, or a path is not there."""
    write_files(tmp_path, {"plain.py": "print('nothing here')\n", "unrelated.py": "x = (\n"})
    (tmp_path / "nowhere.py").symlink_to("gone.py")  # holds nothing
    assert run("scan", tmp_path).exit_code == 0
    write_files(tmp_path, {"copy.py": REWRITTEN})
    assert run("scan", tmp_path).exit_code == 1
    write_files(tmp_path, {"broken.py": "gather = (\n"})
    result = run("scan", tmp_path)
    assert result.exit_code == 2
    assert f"not read: {tmp_path.as_posix()}/broken.py: does not parse" in result.output
    assert "copy.py: exact: the original of mirasol" in result.output
    assert run("scan", tmp_path / "nowhere").exit_code == 2


def test_the_output_is_stable_and_sorted(tmp_path: Path) -> None:
    """The same bytes for the same tree, in whatever order the paths are given."""
    for name in ("b", "a", "c"):
        write_files(tmp_path, {f"{name}bc.py": RIGHT, f"{name}/copy.py": RIGHT, f"{name}/broken.py": "gather = (\n"})
    for form in ([], ["--json"]):
        one = run("scan", tmp_path / "b", tmp_path / "a", tmp_path / "c", *form).stdout
        assert one == run("scan", tmp_path / "c", tmp_path / "b", tmp_path / "a", tmp_path / "a", *form).stdout
    whole = run("scan", tmp_path).stdout
    found = [line.partition(": ")[0] for line in whole.splitlines() if ": exact" in line]
    assert len(found) == 6
    assert found == sorted(found)
    assert "6 copies found in 9 files\n" in whole
    assert "1 copy found in 1 file\n" in run("scan", tmp_path / "abc.py").stdout


def test_json_says_what_the_text_says(tmp_path: Path) -> None:
    """Imports, objects built and calls among it, with file and line, under build/ too; not a copy's own calls."""
    code = "from .distributed import AllGather\ngather = AllGather(dim=1)\ny, lengths = gather(x)\n"
    package(tmp_path / "build", code, distributed=copy_with("a wrong slice"))
    answer = json.loads(run("scan", tmp_path, "--json").stdout)
    (finding,) = answer["findings"]
    expected = {"kind": "edited", "adapter": "mirasol", "similarity": 97}
    assert {key: finding[key] for key in expected} == expected
    assert finding["path"] == "build/pkg/distributed.py"
    assert [(one["name"], one["how"]) for one in finding["differences"]] == [("AllGatherFunction", "changed")]
    assert [one["name"] for one in finding["definitions"]] == DEFINITIONS
    assert [(site["path"], site["line"], site["kind"], site["name"]) for site in finding["sites"]] == [
        ("build/pkg/use.py", 1, "import", "AllGather"),
        ("build/pkg/use.py", 2, "build", "AllGather"),
        ("build/pkg/use.py", 3, "call", "AllGather"),
    ]
    assert (answer["unread"], answer["files"], answer["exit_code"]) == ([], 3, 1)
    assert "call build/pkg/use.py:3: y, lengths = gather(x)" in run("scan", tmp_path).output


def test_progress_is_for_terminals(tmp_path: Path) -> None:
    """A bar on standard error where that is a terminal; nothing of it in a log, or in what is piped."""
    write_files(tmp_path, {"a.py": ""})
    plain, terminal = run("scan", tmp_path), run("scan", tmp_path, FORCE_COLOR="1", COLUMNS="100")
    assert plain.stderr == ""
    assert "scanning" in terminal.stderr
    assert plain.stdout == terminal.stdout


# ------------------------------------------------------------------ projects that no adapter covers


def test_a_known_project_without_an_adapter_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By scan and by plan. A file that is as near to an original is a copy of that."""
    monkeypatch.setattr(sisters, "known_sisters", lambda: {"x-transformers-rl": record(RIGHT)})
    monkeypatch.setattr(survey, "known_originals", lambda: {"mirasol": record(copy_with("a wrong slice"))})
    repo = write_files(tmp_path / "repo", {"pkg/__init__.py": "", "pkg/distributed.py": RIGHT})
    (finding,) = scan([repo]).findings
    assert (finding.kind, finding.adapter) == ("relative", None)
    assert finding.notes == (sisters.ADVICE["x-transformers-rl"],)
    result = run("plan", committed(repo))
    assert result.exit_code == 2
    assert "from shared_distributed import all_gather_same_dim, all_gather_variable_dim" in result.output
    monkeypatch.setattr(survey, "known_originals", lambda: KNOWN)
    (finding,) = scan([repo]).findings
    assert (finding.kind, finding.adapter) == ("exact", "mirasol")


def test_the_advice_names_what_the_core_exports() -> None:
    """Each name after `import`, so that the line can be copied."""
    for text in sisters.ADVICE.values():
        (names,) = re.findall(r"`from shared_distributed import ([\w, ]+)`", text)
        assert set(names.split(", ")) <= core_names()
    assert sisters.known_sisters().keys() == sisters.ADVICE.keys()

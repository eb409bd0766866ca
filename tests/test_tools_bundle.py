# SPDX-License-Identifier: MIT
"""Rendering: what is kept of the core, what the result looks like, which sources are refused."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_distributed_tools.bundle import bundle
from shared_distributed_tools.sources import Sources, root
from shared_distributed_tools.verify import verify

from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.errors import RenderError, ToolError
from shared_distributed_tools.render import render

ROOT = Path(__file__).resolve().parents[1]


def made_up(core: dict[str, str], adapter: str) -> Sources:
    """Sources of a core with the modules given, each with a docstring; the package exports every import of it."""
    names = {name for text in core.values() for name in _public(text)}
    exports = "".join(f"from .{module} import {name}\n" for module, text in core.items() for name in _public(text))
    package = f'"""A made-up core."""\n\n{exports if names else ""}'
    modules = {name: f'"""What {name} does."""\n\n{text}' for name, text in core.items()}
    return Sources((("__init__", package), *sorted(modules.items())), f'"""An adapter."""\n\n{adapter}', "1.0", "1.0")


def _public(text: str) -> list[str]:
    return re.findall(r"^(?:def|class) (\w+)", text, re.MULTILINE)


def adapter_of(*imports: str, body: str = "", exports: tuple[str, ...] = ()) -> str:
    lines = "".join(f"from shared_distributed import {name}\n" for name in imports)
    return f"{lines}\n__all__ = {json.dumps(exports)}\n\n{body}"


def defined_in(text: str) -> list[str]:
    """The names that a module's top level defines, imports aside, in order."""
    names: list[str] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return names


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_rendered_files_pass_the_linter_and_the_formatter(name: str, command: list[str]) -> None:
    """Ruff has nothing to say about a rendered file, with the configuration that the sources have."""
    beside = ROOT / "packages" / name / "distributed.py"  # where an adapter's own docstring rules hold
    arguments = [*command, "--config", str(ROOT / "pyproject.toml"), "--stdin-filename", str(beside), "-"]
    ruff = [sys.executable, "-m", "ruff", *arguments]
    done = subprocess.run(ruff, input=render(name), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ADAPTERS)
def test_rendered_files_stand_alone(name: str) -> None:
    """Torch, einops and the standard library are all that a rendered file imports, at any depth."""
    packages = set()
    for node in ast.walk(ast.parse(render(name))):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            packages.add((node.module or "").split(".")[0])
    assert "torch" in packages
    assert packages - {"torch", "einops"} <= sys.stdlib_module_names


@pytest.mark.parametrize("name", ADAPTERS)
def test_rendered_files_define_what_the_adapter_exports(name: str) -> None:
    """`__all__` is the adapter's own, and each name in it is defined at the top level."""
    adapter = ast.parse((root() / ADAPTERS[name].source).read_text())
    rendered = ast.parse(render(name))
    exported = [
        ast.literal_eval(node.value)
        for tree in (adapter, rendered)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert exported[0] == exported[1]
    assert set(exported[1]) <= set(defined_in(render(name)))


def test_rendering_depends_on_the_sources_alone(tmp_path: Path) -> None:
    """Same sources, same bytes: another hash seed, another folder and another locale change nothing."""
    code = "import os; from shared_distributed_tools.render import render; os.write(1, render('st-moe').encode())"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "LC_ALL": "C"}
    command = [sys.executable, "-c", code]
    elsewhere = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=True).stdout
    assert elsewhere == render("st-moe").encode()


def test_an_unknown_adapter_is_named_with_those_there_are() -> None:
    """The error lists the adapters."""
    with pytest.raises(ToolError, match="mirasol, musiclm, spear-tts, st-moe"):
        render("whisper")


def test_only_what_is_reached_is_kept() -> None:
    """Functions, classes, constants, tables, tuples and annotated names stay if something kept uses them."""
    core = {
        "_a": "LIMIT: int = 3\n_X, _Y = 1, 2\n_UNUSED = 5\n\n\n"
        "def deep():\n    return LIMIT + _Y\n\n\ndef lost():\n    return _UNUSED\n",
        "_b": "from ._a import deep, lost\n\nTABLE = {'deep': deep}\n\n\n"
        "class Top:\n    table = TABLE\n\n\ndef other():\n    return lost()\n",
    }
    text = bundle(made_up(core, adapter_of("Top", body="own = Top()\n", exports=("own",))))
    assert defined_in(text) == ["__all__", "LIMIT", "_X", "_Y", "deep", "TABLE", "Top", "own"]


def test_a_local_name_is_no_reason_to_keep_a_definition() -> None:
    """Scopes count, not spelling: a parameter that happens to have a function's name keeps nothing."""
    core = {"_a": "def total():\n    return 1\n\n\ndef top(total):\n    return total\n"}
    text = bundle(made_up(core, adapter_of("top", exports=("top",))))
    assert defined_in(text) == ["__all__", "top"]


def test_a_global_statement_uses_a_name_and_does_not_define_it() -> None:
    """A function that writes to a module's variable brings the variable, not the other functions that write to it."""
    writes = "def {}():\n    global _count\n    _count = {}\n\n\n"
    core = {"_a": "_count = 0\n\n\n" + writes.format("start", 1) + writes.format("stop", 2)}
    text = bundle(made_up(core, adapter_of("start", exports=("start",))))
    assert defined_in(text) == ["__all__", "_count", "start"]


def test_every_statement_that_binds_a_name_is_kept() -> None:
    """Overloads and fallbacks in a block stay together."""
    core = {
        "_a": "import os\n\ntry:\n    from os import fork\nexcept ImportError:\n    fork = None\n\n"
        "A = 1\nA = A + 1\n\n\ndef top():\n    return fork, A, os\n"
    }
    text = bundle(made_up(core, adapter_of("top", exports=("top",))))
    space: dict[str, object] = {}
    exec(compile(text, "rendered", "exec"), space)
    assert space["A"] == 2
    assert "except ImportError" in text


def test_an_alias_renames_the_definition_everywhere() -> None:
    """`import f as core_f` gives the core's f that name, in every module that calls it; the adapter's f is its own."""
    core = {
        "_a": "def f(n):\n    return n if n < 1 else f(n - 1)\n",
        "_b": "from ._a import f\n\n\ndef g(f_=f):\n    return f(2), f_(3), 'f'\n",
    }
    body = "def f(n):\n    return ('own', core_f(n), g())\n"
    text = bundle(made_up(core, adapter_of("f as core_f", "g", body=body, exports=("f", "g"))))
    space: dict[str, object] = {}
    exec(compile(text, "rendered", "exec"), space)
    assert space["f"](5) == ("own", 0, (0, 0, "f"))  # type: ignore[operator]
    assert defined_in(text) == ["__all__", "core_f", "g", "f"]


@pytest.mark.parametrize("alias", ["c", "core_something_with_a_very_long_name_indeed"])
@pytest.mark.parametrize("width", [90, 116, 120, 121, 125])
def test_a_renamed_function_is_laid_out_as_the_formatter_would(alias: str, width: int) -> None:
    """A head that a new name makes fit one line, or no longer fit, is broken where ruff breaks it."""
    parameter = "n" * (width - len("def short(, *, group: int | None = None) -> None:"))
    head = f"def short({parameter}, *, group: int | None = None) -> None:\n    pass\n"
    ruff = [sys.executable, "-m", "ruff", "format", "--line-length", "120", "-"]
    formatted = subprocess.run(ruff, input=head, capture_output=True, text=True, check=True).stdout
    text = bundle(
        made_up({"_a": formatted}, adapter_of(f"short as {alias}", body=f"own = {alias}\n", exports=("own",)))
    )
    again = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    assert text == again


def test_late_imports_from_the_core_go_and_their_definitions_come() -> None:
    """What a function imports from the core when it runs is at hand in the bundle; torch's late imports stay."""
    core = {
        "_a": "def helper():\n    return 1\n",
        "_b": "def top():\n    from torch import nn\n\n    from ._a import helper\n\n    return helper(), nn\n",
    }
    text = bundle(made_up(core, adapter_of("top", exports=("top",))))
    assert defined_in(text) == ["__all__", "helper", "top"]
    assert "from torch import nn" in text
    assert "import helper" not in text


def test_imports_are_merged_and_unused_ones_dropped() -> None:
    """One statement a module, in isort's order: constants, classes, functions; modules before members."""
    core = {
        "_a": "import os\nimport zlib\nfrom math import prod, ceil\nfrom typing import Any\n\n"
        "import torch.distributed as dist\nfrom torch import Tensor\n\n\n"
        "def f(x: Any) -> Tensor:\n    return prod(x), dist, os\n",
        "_b": "from math import floor\nfrom string import Template, capwords, ascii_letters\n\n"
        "import torch\nfrom torch import nn\n\nfrom ._a import f\n\n\n"
        "def g():\n    return f(floor(torch.ones(1))), nn, Template, capwords\n",
    }
    text = bundle(made_up(core, adapter_of("g", exports=("g",))))
    expected = (
        "import os\nfrom math import floor, prod\nfrom string import Template, capwords\nfrom typing import Any\n\n"
        "import torch\nimport torch.distributed as dist\nfrom torch import Tensor, nn\n\n__all__"
    )
    assert expected in text


def test_comments_and_docstrings_of_kept_definitions_stay() -> None:
    """A comment right above a definition belongs to it; one that a blank line sets apart does not."""
    core = {
        "_a": "# ----------- set apart\n\n\n# why A is what it is\nA = 1  # and in short\n\n"
        "# about nothing kept\nB = 2\n\n\n# above f\ndef f():\n    '''What f does.'''\n    return A  # inside f\n"
    }
    text = bundle(made_up(core, adapter_of("f", exports=("f",))))
    for kept in ("# why A is", "# and in short", "# above f", "What f does.", "# inside f", "# -- What _a does."):
        assert text.count(kept) == 1
    assert "set apart" not in text
    assert "about nothing" not in text


F, G = "def f(): ...\n", "def g(): ...\n"
CALLS_H = "from ._a import {}\n\n\ndef g():\n    return h\n"
# case -> the core, the adapter's body, what the error says
BROKEN: dict[str, tuple[dict[str, str], str, str]] = {
    "alias in the core": ({"_a": F, "_b": CALLS_H.format("f as h")}, "", "without `as`"),
    "star import": ({"_a": F, "_b": f"from ._a import *\n\n\n{G}"}, "", "one by one"),
    "module import": ({"_a": F, "_b": "from . import _a\n\n\ndef g():\n    return _a.f\n"}, "", "one by one"),
    "import of the package": ({"_a": G}, "import shared_distributed\n", "import names from"),
    "import of a private module": ({"_a": G}, "from shared_distributed._a import g\n", "one by one"),
    "not exported": ({"_a": f"{G}_X = 1\n"}, "from shared_distributed import _X\n", "does not export"),
    "two homes": ({"_a": G, "_b": G}, "", "rename one"),
    "nothing defines it": ({"_a": F, "_b": CALLS_H.format("h")}, "", "nothing defines"),
    "undefined name": ({"_a": "def g():\n    return nowhere\n"}, "", "undefined names: nowhere"),
    "undefined in quotes": ({"_a": "def g(x: 'Nowhere'): ...\n"}, "", "undefined names: .*Nowhere"),
    "foreign import": ({"_a": "import numpy\n\n\ndef g():\n    return numpy\n"}, "", "standard library only"),
    "late foreign import": ({"_a": "def g():\n    import numpy\n\n    return numpy\n"}, "", "standard library only"),
    "future import": ({"_a": f"from __future__ import annotations\n\n\n{G}"}, "", "cannot bundle"),
    "not Python": ({"_a": G, "_b": "g g\n"}, "", "not valid Python"),
    "bare call": ({"_a": f"print('hello')\n\n\n{G}"}, "", "defines nothing"),
    "circle": ({"_a": f"from ._b import g\n\n\n{F}", "_b": f"from ._a import f\n\n\n{G}"}, "", "in a circle"),
    "clash with the adapter": ({"_a": f"{F}\n\ndef g():\n    return f\n"}, F, "several things"),
    "clash of imports": (
        {
            "_a": "from math import floor as x\n\n\ndef f():\n    return x\n",
            "_b": "from math import ceil as x\n\nfrom ._a import f\n\n\ndef g():\n    return x, f\n",
        },
        "",
        "several things",
    ),
    "no such export": ({"_a": G}, "__all__ = ['g', 'h']\n", "does not define: h"),
    "late and assigned": (
        {"_a": F, "_b": "def g():\n    f = 1\n    from ._a import f\n\n    return f\n"},
        "",
        "assigned as well",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_sources_that_break_a_rule_render_nothing(case: str) -> None:
    """Each rule that rendering relies on fails the build when it is broken, and says which."""
    core, adapter, message = BROKEN[case]
    with pytest.raises(RenderError, match=message):
        bundle(made_up(core, adapter_of("g", body=adapter, exports=("g",))))


@pytest.mark.parametrize(
    ("core", "imports", "message"),
    [
        ({"_a": "def f(): ...\n\n\ndef g(x: 'f'): ...\n"}, ("f as core_f", "g"), "quoted annotation"),
        ({"_a": "def f(): ...\n\n\ndef g(core_f):\n    return f\n"}, ("f as core_f", "g"), "choose another"),
        ({"_a": "def f(): ...\n\n\ndef g(): ...\n"}, ("f as core_f", "f", "g"), "use one name"),
    ],
)
def test_an_alias_that_cannot_be_given_renders_nothing(
    core: dict[str, str], imports: tuple[str, ...], message: str
) -> None:
    """A new name that would be captured, or is not the only one, or stands in quotes, fails the build."""
    with pytest.raises(RenderError, match=message):
        bundle(made_up(core, adapter_of(*imports, exports=("g",))))


@pytest.mark.parametrize(
    "code",
    [
        "x = nowhere",
        "def top(a):\n    return lambda: a + nowhere",
        "class C:\n    y = [nowhere for _ in ()]",
        "def f():\n    global nowhere\n    return nowhere",
        "@nowhere\ndef f(): ...",
    ],
)
def test_the_compiler_has_the_last_word_on_names(code: str) -> None:
    """An undefined name in a result is found at any depth, whatever made the result."""
    with pytest.raises(RenderError, match="undefined names: nowhere"):
        verify(code)
    verify(f"nowhere = len\n{code}")


def test_an_adapter_without_exports_renders_nothing() -> None:
    """`__all__` is what downstream may import: an adapter has one."""
    with pytest.raises(RenderError, match="needs an __all__"):
        bundle(made_up({"_a": "def g(): ...\n"}, "from shared_distributed import g\n\nown = g\n"))


@st.composite
def made_up_cores(draw: st.DrawFn) -> tuple[Sources, set[str]]:
    """A core of up to three modules whose functions call earlier ones, and the functions that an adapter reaches."""
    count = draw(st.integers(1, 9))
    homes = sorted(draw(st.lists(st.sampled_from("abc"), min_size=count, max_size=count)))
    calls = [draw(st.sets(st.integers(0, max(i - 1, 0)), max_size=3)) if i else set() for i in range(count)]
    core = {}
    for home in sorted(set(homes)):
        own = [i for i in range(count) if homes[i] == home]
        wanted = sorted({j for i in own for j in calls[i] if homes[j] != home})
        lines = [f"from ._{homes[j]} import f{j}\n" for j in wanted]
        functions = [
            f"\n\ndef f{i}():\n    return {i}, [{', '.join(f'f{j}()' for j in sorted(calls[i]))}]\n" for i in own
        ]
        core[f"_{home}"] = "".join(lines + functions)
    roots = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=3)))
    reached, todo = set(), list(roots)
    while todo:
        i = todo.pop()
        reached.add(i)
        todo += calls[i]
    names = tuple(f"f{i}" for i in roots)
    return made_up(core, adapter_of(*names, exports=names)), {f"f{i}" for i in reached}


@settings(max_examples=40, deadline=None)
@given(made_up_cores())
def test_exactly_what_is_reachable_is_defined_and_runs(case: tuple[Sources, set[str]]) -> None:
    """Whatever calls whatever: the bundle has the functions that the adapter reaches, no other, each before its use."""
    sources, reached = case
    text = bundle(sources)
    assert set(defined_in(text)) == reached | {"__all__"}
    space: dict[str, object] = {}
    exec(compile(text, "rendered", "exec"), space)
    for name in reached:
        assert space[name]()[0] == int(name[1:])  # type: ignore[operator]

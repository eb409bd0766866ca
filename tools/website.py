# SPDX-License-Identifier: MIT
"""The documentation as a website: the API reference from the docstrings, and the pages of shared/distributed/docs.

    python tools/website.py FOLDER MODULE...

pdoc takes a page as the docstring of a module that holds nothing else, so pages have its layout, search and contents.
"""

import re
import sys
from pathlib import Path
from types import ModuleType

from pdoc import doc, render

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "shared/distributed/docs"


def page(file: Path) -> doc.Module:
    """A Markdown file. Links to other pages stay among them; links to files lead into the checkout."""

    def link(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        if (PAGES / target).parent == PAGES and target.endswith(".md"):
            return f"]({target.removesuffix('.md')}.html{anchor})"
        return f"](../{(PAGES / target).resolve().relative_to(ROOT)}{anchor})"

    module = ModuleType(file.stem)
    module.__doc__ = re.sub(r"\]\(([^)#:]+)(#[^)]*)?\)", link, file.read_text())
    return doc.Module(module)


def build(folder: Path, *names: str) -> None:
    """Render all of it into a folder."""
    modules = {file.stem: page(file) for file in sorted(PAGES.glob("*.md"))}
    modules |= {name: doc.Module.from_name(name) for name in names}
    render.configure(docformat="google")
    folder.mkdir(parents=True, exist_ok=True)
    for name, module in modules.items():
        (folder / f"{name}.html").write_text(render.html_module(module, modules))
    (folder / "index.html").write_text(render.html_index(modules))
    (folder / "search.js").write_text(render.search_index(modules))


if __name__ == "__main__":
    build(Path(sys.argv[1]), *sys.argv[2:])

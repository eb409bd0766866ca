# SPDX-License-Identifier: MIT
"""The generator of defects: what it changes, one thing at a time."""

import pytest

from tests.house.defects import defects_of

pytestmark = pytest.mark.suite("tools")

SOURCE = '''
def first(ranks, x):
    """A docstring with 1 number."""
    if x < 1 and not x:
        raise ValueError
    ranks.done = True
    call(x, group=ranks.rank)
    return x + 2
'''


def test_each_defect_changes_one_thing() -> None:
    """Of every kind, in this function; the docstring stays."""
    found = {(defect.kind, defect.before, defect.after) for defect in defects_of(SOURCE)}
    assert found == {
        ("condition", "if x < 1 and (not x):", "if not (x < 1 and (not x)):"),
        ("boolean", "x < 1 and (not x)", "x < 1 or not x"),
        ("boolean", "not x", "x"),
        ("comparison", "x < 1", "x <= 1"),
        ("constant", "1", "2"),
        ("constant", "2", "3"),
        ("constant", "True", "False"),
        ("statement", "raise ValueError", "pass"),
        ("statement", "ranks.done = True", "pass"),
        ("statement", "call(x, group=ranks.rank)", "pass"),
        ("argument", "call(x, group=ranks.rank)", "call(x)"),
        ("attribute", "ranks.rank", "ranks.world"),
        ("arithmetic", "x + 2", "x - 2"),
    }


def test_the_source_with_a_defect_is_the_source_but_for_it() -> None:
    """Every one can be compiled, and differs from the others."""
    sources = [defect.source for defect in defects_of(SOURCE)]
    assert len(set(sources)) == len(sources)
    for source in sources:
        compile(source, "broken.py", "exec")
        assert "A docstring with 1 number." in source

"""docs/faults.md names tests that there are."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = TESTS.parent / "docs" / "faults.md"


def test_every_test_that_the_table_names_is_there():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", TABLE.read_text(encoding="utf-8"))
    sources = {file: (TESTS / file).read_text(encoding="utf-8") for file, _ in named}
    assert len(named) > 50
    assert [n for n in named if f"def {n[1]}(" not in sources[n[0]]] == []

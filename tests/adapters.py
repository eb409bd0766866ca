# SPDX-License-Identifier: MIT
"""What each adapter promises, from the `contract.json` beside its sources: adding one adds its tests."""

import json
from pathlib import Path
from typing import Any

CONTRACTS: dict[str, dict[str, Any]] = {
    contract.parent.name: json.loads(contract.read_text())
    for contract in sorted((Path(__file__).parent.parent / "packages").glob("*/contract.json"))
}

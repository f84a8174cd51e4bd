"""Help and look-ups in the store load these classes: they must not cost an import of torch."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from rbtools.attacks import ATTACKS
from rbtools.training import METHODS
for registry in (ATTACKS, METHODS):
    for name in registry:
        registry.build(name)
print(sorted({"torch", "numpy", "pyautoattack"} & set(sys.modules)))
"""


def test_building_every_attack_and_method_imports_no_torch():
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

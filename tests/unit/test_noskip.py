"""CI's promise that nothing is left out: the plugin fails a skip unless the test needs a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = {
    "test_plain": "import pytest\ndef test_it(): pytest.skip('no tool')\n",
    "test_marked": "import pytest\n@pytest.mark.skip(reason='later')\ndef test_it(): pass\n",
    "test_module": "import pytest\npytest.importorskip('no_such_module_anywhere')\ndef test_it(): pass\n",
    "test_gpu": "import pytest\n@pytest.mark.gpu\ndef test_it(): pytest.skip('no GPU')\n",
    "test_good": "def test_it(): pass\n",
}


@pytest.mark.parametrize(("forbidden", "failing"), [("1", {"plain", "marked", "module"}), ("0", set())])
def test_a_skip_fails_where_it_is_forbidden_but_a_gpu_test_may(
    tmp_path: Path, forbidden: str, failing: set[str]
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a GPU\n")
    for name, source in TESTS.items():
        (tmp_path / f"{name}.py").write_text(source)
    quick = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--continue-on-collection-errors", "-rfE"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.noskip", *quick, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PERFSCOPE_NO_SKIPS": forbidden},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) test_(\w+)\.py", done.stdout, re.MULTILINE)
    assert set(failed) == failing, done.stdout
    assert (done.returncode != 0) == bool(failing)

"""Runs all programs of the documentation and README.md in one job of two ranks."""

import re
import sys

import launcher_tools as tools
import pytest

PAGES = ("recipes", "first_run", "from_one_process")
README = tools.ROOT / "README.md"
# The setup that the program in README.md assumes.
DATA = """
import numpy as np
x, y = np.ones((70, 64), "float32"), np.zeros(70, "int32")
"""


@pytest.mark.slow
def test_recipes(tmp_path):
    def programs(path):
        return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)

    # Those for Ray and Spark run in tests/engines.
    (readme,) = [program for program in programs(README) if "tfring.keras" in program]
    pages = [tools.ROOT / "docs" / f"{name}.md" for name in PAGES]
    blocks = [*(block for page in pages for block in programs(page)), DATA + readme]
    assert len(blocks) >= 20
    paths = [tools.write_script(tmp_path, b, f"recipe_{i}.py") for i, b in enumerate(blocks, 1)]
    script = tools.write_script(
        tmp_path,
        f"""
        import runpy
        for path in {paths!r}:
            print("RECIPE", path, flush=True)
            runpy.run_path(path, run_name="__main__")
        print("RECIPES DONE")
        """,
    )
    done = tools.run("-np", 2, sys.executable, script)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("RECIPES DONE") == 2


EXAMPLES = tools.ROOT / "examples/reference"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["collectives", "for_keras"])
def test_examples_of_public_names_on_two_ranks(tmp_path, name):
    done = tools.run("-np", 2, sys.executable, EXAMPLES / f"{name}.py", tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_examples_of_public_names_without_tensorflow(tmp_path):
    done = tools.run_python(EXAMPLES / "without_tensorflow.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        "collectives",
        "for_keras",
        "without_tensorflow",
    }

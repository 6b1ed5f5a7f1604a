"""The example of README.md runs as it is written."""

import re
import subprocess
import sys

import launcher_tools as tools
import spark_cluster


def test_the_example_runs(tmp_path):
    text = (tools.ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (example,) = [block for block in blocks if "tfring.spark" in block]
    path = tmp_path / "example.py"
    path.write_text(example)
    environment = tools.environment(**spark_cluster.variables(tmp_path))
    done = subprocess.run(
        [sys.executable, path], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "[3.0, 3.0]", done.stdout

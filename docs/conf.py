"""Sphinx configuration. Writes one reference page per public name before anything is read."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from sphinx.ext.autodoc.mock import mock  # noqa: E402

import tfring  # noqa: E402

project = "tfring"
author = "the tfring authors"
version = release = tfring.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"tfring {version}"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
# Links to files of the repository beside docs/ are right in the repository and lead nowhere here.
suppress_warnings = ["myst.xref_missing"]
default_role = "code"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# The documentation is built without them.
autodoc_mock_imports = ["pandas", "pyarrow", "pyspark", "ray"]
autodoc_member_order = "bysource"
napoleon_use_ivar = True
nitpicky = False

# Modules whose public names are a user's API, with what is said about them.
MODULES = {
    "tfring": "`import tfring as hvd`: collectives, tapes, optimizers, process sets.",
    "tfring.keras": "`import tfring.keras as hvd`: what a Keras script needs. Names that are the "
    "same as in `tfring` have their page there.",
    "tfring.store": "Keys and values that processes share while they form a job.",
    "tfring.keras.callbacks": "`hvd.callbacks`: for `model.fit`. Every callback of tfring is here, "
    "and its name ends in `Callback`, except for names of Horovod (`BestModelCheckpoint`). What "
    "does the work of a function of Keras for all ranks has the name of that function: "
    "`hvd.evaluate`, `hvd.load_model`, `hvd.set_random_seed`.",
    "tfring.elastic": "`hvd.elastic` of `import tfring as hvd`: training that goes on when ranks "
    "are lost or join.",
    "tfring.keras.elastic": "`hvd.elastic` of `import tfring.keras as hvd`. Names that are the "
    "same as in `tfring.elastic` have their page there.",
    "tfring.ray": "Training on the actors of a Ray cluster.",
    "tfring.spark": "Training in the tasks of a Spark job.",
    "tfring.spark.keras": "Estimators of Spark ML that train Keras models.",
    "tfring.spark.store": "Where the estimators keep their files.",
    "tfring.data": "`hvd.data`: data that goes on where it was, with any number of ranks.",
    "tfring.checkpoint": "Checkpoints of any arrays, without TensorFlow and without `init`.",
}

# The page of the docs with examples for a module's names, where examples/reference has none.
GUIDES = {
    "tfring.elastic": "elastic",
    "tfring.keras.elastic": "elastic",
    "tfring.ray": "ray",
    "tfring.spark": "spark",
    "tfring.spark.keras": "spark",
    "tfring.spark.store": "spark",
    "tfring.data": "data",
    "tfring.checkpoint": "checkpoints",
    "tfring.store": "stores",
}
# Names that have neither.
WITHOUT_EXAMPLE = {
    *("load_ops", "run"),
    *(
        "CommunicationMetricsCallback",
        "JoinCallback",
        "StragglerCallback",
        "SyncBatchNormalization",
    ),
}
EXAMPLES = HERE.parent / "examples/reference"


def _examples() -> dict[str, str]:
    """Returns the examples by the names for which they are, each with the imports of its file."""
    found = {}
    for path in sorted(EXAMPLES.glob("*.py")):
        imports, *parts = re.split(
            r"^((?:# %%.*\n)+)", path.read_text("utf-8"), flags=re.MULTILINE
        )[2:]
        for names, code in zip(parts[::2], parts[1::2], strict=True):
            for name in re.findall(r"[\w.]+", names):
                found[name] = f"{imports.strip()}\n\n{code.strip()}"
    return found


def _directive(value: object) -> str:
    if inspect.isclass(value):
        return "autoclass"
    if inspect.ismodule(value):
        return "automodule"
    return "autofunction" if callable(value) else "autodata"


def _page(module: str, name: str, value: object, example: str | None) -> str:
    title = f"{module}.{name}"
    lines = [title, "=" * len(title), "", f".. currentmodule:: {module}", ""]
    lines.append(f".. {_directive(value)}:: {title}")
    if inspect.isclass(value):
        lines += ["   :members:", "   :show-inheritance:"]
    if _directive(value) == "autodata":
        lines.append("   :no-value:")
    if example is not None:
        lines += ["", ".. code-block:: python", "", textwrap.indent(example, "   ")]
    elif module in GUIDES:
        lines += ["", f"Examples: :doc:`/{GUIDES[module]}`."]
    return "\n".join([*lines, ""])


def _public_names(module: Any) -> list[str]:
    own = [n for n, v in vars(module).items() if inspect.isclass(v) and n[0].isupper()]
    return list(getattr(module, "__all__", sorted(own)))


def _write_reference(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    seen: dict[int, str] = {}
    examples = _examples()
    without = set()
    index = ["# Reference", "", "One page per public name.", ""]
    wanted = set()
    for module_name, about in MODULES.items():
        module = importlib.import_module(module_name)
        index += [f"## {module_name}", "", about, "", "```{toctree}", ":maxdepth: 1", ""]
        for name in _public_names(module):
            value = getattr(module, name)
            if name.startswith("__") or inspect.ismodule(value):
                continue
            # Small numbers are one object wherever they come from: the reduce operations.
            key = id(value) if callable(value) else hash((name, repr(value)))
            if key in seen:
                continue
            seen[key] = f"{module_name}.{name}"
            full = f"{module_name}.{name}"
            wanted.add(f"{full}.rst")
            example = examples.pop(full, None)
            if example is None and module_name not in GUIDES and callable(value):
                without.add(name)
            _write(folder / f"{full}.rst", _page(module_name, name, value, example))
            index.append(full)
        index += ["```", ""]
    if examples or without != WITHOUT_EXAMPLE:
        raise ValueError(
            f"{EXAMPLES} has examples of {sorted(examples)}, which are no public names; without "
            f"an example are {sorted(without - WITHOUT_EXAMPLE)}, and no longer without one "
            f"{sorted(WITHOUT_EXAMPLE - without)}"
        )
    _write(folder / "index.md", "\n".join(index))
    for old in folder.glob("*.rst"):
        if old.name not in wanted:
            old.unlink()


def _write(path: Path, text: str) -> None:
    """Leaves a file that says the same alone, so that Sphinx need not read it again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


with mock(autodoc_mock_imports):
    _write_reference(HERE / "reference")


def _leave_out_decisions(app: Any, _doctree: Any) -> None:
    """Takes decision records out of the navigation and the search; adr/README links to them."""
    page = app.env.docname
    if page.startswith("adr/"):
        app.env.metadata[page].update(nosearch=True)
    if page.startswith("adr/0"):
        app.env.metadata[page].update(orphan=True)


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("doctree-read", _leave_out_decisions)

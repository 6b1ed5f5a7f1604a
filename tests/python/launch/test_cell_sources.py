"""Source lines that no file holds, for the tracebacks of ranks."""

import linecache

import pytest

from tfring.launch import cell_sources


@pytest.fixture(autouse=True)
def restored():
    before = dict(linecache.cache)
    yield
    linecache.cache.clear()
    linecache.cache.update(before)


def remember(name, text, changed=None):
    lines = text.splitlines(keepends=True)
    linecache.cache[name] = (len(text), changed, lines, name)


def test_only_what_is_in_no_file(tmp_path):
    linecache.cache.clear()
    path = tmp_path / "there.py"
    path.write_text("x = 1\n")
    remember(str(path), "x = 1\n")
    remember("/no/such/file.py", "y = 2\n", changed=1.0)
    linecache.cache["<lazy>"] = (lambda: "z = 3\n",)
    remember("<cell 1>", "a = 1\nb = 2")
    assert cell_sources.collect() == {"<cell 1>": "a = 1\nb = 2"}


def test_the_newest_if_there_are_too_many(monkeypatch):
    linecache.cache.clear()
    monkeypatch.setattr(cell_sources, "_MOST_BYTES", 10)
    for name in ("<1>", "<2>", "<3>"):
        remember(name, "12345")
    assert cell_sources.collect() == {"<3>": "12345", "<2>": "12345"}

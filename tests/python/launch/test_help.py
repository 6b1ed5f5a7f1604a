"""`tfring --help`, `tfring help`, and the message for unknown words."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from launcher_tools import ROOT, environment, run_python
from run_options import refused

from tfring.launch.cli import MODULES, main, parser_of
from tfring.launch.pages import pages

# A message or a page says `tfring help values`. Words after it select sections.
POINTER = re.compile(r"tfring help ([a-z_]+)")


def printed(capsys, *words):
    assert main(words) == 0
    return capsys.readouterr().out


def test_the_list_has_every_page_with_its_title(capsys):
    text = printed(capsys, "help")
    title = (ROOT / "docs" / "values.md").read_text("utf-8").splitlines()[0].removeprefix("# ")
    assert re.search(rf"^  values +{re.escape(title)}$", text, re.MULTILINE)
    assert "\nGet started:\n  installation " in text
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} == set(pages())


def commands_page():
    """The module that makes the pages of commands."""
    spec = importlib.util.spec_from_file_location("commands_page", ROOT / "tools/commands.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    return maker


def test_each_command_prints_an_object_or_the_page_says_why_not():
    maker = commands_page()
    for name in MODULES:
        has = "--json" in parser_of(name)._option_string_actions
        assert (maker.answer_of(name) is None) == (name in maker.WITHOUT_JSON), name
        assert has or name in maker.WITHOUT_JSON, name


def test_the_pages_of_commands_are_those_of_the_parsers_and_answers():
    maker = commands_page()
    assert maker.PAGE.read_text("utf-8") == maker.page(), "run `make settings`"
    assert "| `-np N`, `--num-proc N` | number of ranks to start |" in maker.page()
    assert "--stall-check-warning-time-seconds" in maker.page()
    assert "--log-hide-timestamp" not in maker.page()  # an internal setting
    assert maker.JSON_PAGE.read_text("utf-8") == maker.json_page(), "run `make settings`"


def test_a_page_and_some_of_its_sections(capsys):
    whole = printed(capsys, "help", "values")
    assert whole.startswith("# NaN") and "## When weights went apart" in whole
    # A link leads to a command, or nowhere: files beside the pages are not in the wheel.
    assert "](" not in printed(capsys, "help", "failures")
    one = printed(capsys, "help", "values", "NaN", "comes")
    assert one.startswith("## Where a NaN comes from") and "went apart" not in one
    assert "no heading of the page values" in refused(capsys, "help", "values", "nowhere")


def test_words_are_searched_for_on_all_pages(capsys):
    text = printed(capsys, "help", "process", "sets")
    assert re.search(r"^- tfring help \w+: ", text, re.MULTILINE)
    assert "All pages: tfring help\n" in refused(capsys, "help", "no_page_says_this")


def test_a_comment_in_a_program_is_no_heading(tmp_path, monkeypatch, capsys):
    page = "# Title\n\n## First\n\n```\n# a comment\npython train.py\n```\n\n## Second\n\ntext\n"
    (tmp_path / "page.md").write_text(page)
    monkeypatch.setattr("tfring.launch.pages._FOLDERS", (tmp_path,))
    assert "python train.py" in printed(capsys, "help", "page", "first")
    assert "no heading" in refused(capsys, "help", "page", "comment")


def test_a_setting_and_a_command(capsys):
    text = printed(capsys, "help", "TFRING_CHECK_VALUES")
    assert "Default: 0. It has to be 0, warn or error." in text
    assert "tfring help values" in text
    with pytest.raises(SystemExit):
        main(["help", "stacks"])
    assert capsys.readouterr().out.startswith("usage: tfring stacks")


def test_pointers_lead_to_pages():
    files = [*(ROOT / "tfring").rglob("*.py"), *(ROOT / "ops").rglob("*.cc")]
    found = {(name, str(path)) for path in files for name in POINTER.findall(path.read_text())}
    assert found
    assert [one for one in sorted(found) if one[0] not in pages()] == []
    of_sources = [path for path in files if re.search(r"docs/\w+\.md", path.read_text())]
    assert [path.name for path in of_sources if path.parent.name != "settings"] == []


def test_the_wheel_has_the_pages(tmp_path):
    pytest.importorskip("setuptools")
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.check_call(build, cwd=ROOT, env=environment())
    code = "from tfring.launch.cli import main; main(['help', 'values'])"
    done = run_python("-P", "-c", code, PYTHONPATH=str(tmp_path))
    assert done.stdout.startswith("# NaN"), done.stderr


def test_every_command_has_a_description_and_an_example():
    for name in MODULES:
        parser = parser_of(name)
        assert parser.description and parser.epilog, name
        examples = [line for line in parser.epilog.splitlines() if not line.startswith(" ")]
        assert [line for line in examples if not line.startswith("tfring ")] == []
        assert f"examples:\n  {examples[0]}" in parser.format_help()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu"], "tfring has no command rnu. Did you mean run?\n"),
        (["python"], "tfring has no command python. tfring --help lists the commands.\n"),
        (["run", "--np", "2", "x"], "tfring run: there is no option --np. Did you mean -np?\n"),
        (["run", "--reprot"], "tfring run: there is no option --reprot. Did you mean --report?\n"),
        (["top", "--onec"], "tfring top: there is no option --onec. Did you mean --once?\n"),
        (["doctor", "now"], "tfring doctor: nothing is expected where now stands\n"),
    ],
)
def test_words_that_are_unknown(capsys, words, said):
    text = refused(capsys, *words)
    assert text.startswith(said)
    if words[0] in MODULES:  # the usage of the command, not of others
        assert f"usage: tfring {words[0]} " in text


def test_the_help_says_the_default_of_every_option():
    for name in MODULES:
        parser = parser_of(name)
        for action in parser._actions:
            told = re.search(r"\(default ([\w.]+)\)", action.help or "")
            number = isinstance(action.default, int | float) and action.default is not True
            if number and action.default is not False:
                shown = f"(default {action.default:g})"
                assert shown in parser._get_formatter()._expand_help(action), (name, action.dest)
            elif told and isinstance(action.default, str):
                assert told[1] == action.default, (name, action.dest)


def test_what_most_need_stands_first():
    text = parser_of("run").format_help()
    options = re.findall(r"^  (-[\w-]+)", text, re.MULTILINE)
    assert options[:7] == ["-h", "-np", "-H", "-hostfile", "-x", "--report", "--dry-run"]
    titles = re.findall(r"^(\w[\w ,:]*):$", text, re.MULTILINE)
    assert titles[:4] == ["examples", "positional arguments", "options", "Hosts and ranks"]
    assert {"Output and reports", "Elastic jobs", "Settings: logs"} <= set(titles)
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("words", "noticed"),
    [
        ("-np 1 python a.py -H a:1,b:1", True),
        ("-np 1 python a.py -np 4", False),  # the program has such an option
        ("-np 1 -- python a.py -H a:1", False),
        ("--min-np 1 python a.py -np 2", True),
    ],
)
def test_a_job_that_starts_all_the_same(capsys, words, noticed):
    assert main(["run", "--dry-run", *words.split()]) == 0
    assert ("stands behind the program" in capsys.readouterr().err) == noticed


def test_a_reader_that_goes_away_is_no_error():
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [sys.executable, "-m", "tfring", "--help"],
        stdout=writes,
        stderr=subprocess.PIPE,
        env=environment(PYTHONUNBUFFERED="1"),
        check=False,
    )
    os.close(writes)
    assert (done.returncode, done.stderr) == (141, b"")


LOADED = """if True:
    import pathlib, sys
    import tfring.observe.recorder.places as places
    from tfring.launch.cli import main

    places.MEMORY = places.USERS = pathlib.Path(sys.argv[1])  # no records of other jobs
    code = main(sys.argv[2:])
    print("loaded", " ".join(sys.modules))
    sys.exit(code)
"""


def loaded(tmp_path, *words):
    """The modules that a command has loaded at its end."""
    done = run_python("-c", LOADED, str(tmp_path), *words)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("loaded ")[2].split())


def test_a_command_loads_what_it_needs(tmp_path):
    version = loaded(tmp_path, "--version")
    assert not version & {"numpy", "json", "socket", *MODULES.values()}
    job = loaded(tmp_path, "run", "-np", "2", "true")
    assert MODULES["run"] in job
    # The modules that explain and report, and numpy, are loaded at the end if there are records.
    late = {
        "numpy",
        "tfring.observe.explain.explain",
        "tfring.observe.report.summary",
        MODULES["doctor"],
    }
    assert not job & {*late, "tfring.launch.elastic.nodes", "tfring.observe.timeline.merge"}


def test_without_words_the_commands_are_listed(capsys):
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert [name for name in MODULES if f"\n  {name} " not in shown] == []
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == shown

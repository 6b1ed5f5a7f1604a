"""What tfring reads from the errors of programs."""

from __future__ import annotations

import pytest

from tfring.runtime.texts.errors import HEADER, last_traceback, of_any_rank, one_line, read_error
from tfring.runtime.texts.frames import is_users

PACKAGES = "/venv/lib/python3.11/site-packages"
KERAS = f'  File "{PACKAGES}/keras/src/utils/traceback_utils.py", line 122, in error_handler'
TRACEBACK = f"""\
noise
{HEADER}
  File "/job/a.py", line 1, in <module>
KeyError: 'handled long ago'
more noise
{HEADER}
  File "/job/a.py", line 2, in <module>
KeyError: 'cause'

During handling of the above exception, another exception occurred:

{HEADER}
  File "/job/a.py", line 3, in <module>
    fit()
{KERAS}
    raise e.with_traceback(filtered_tb) from None
  ^^^^^^^^^^^^^^^^^
  File "{PACKAGES}/tensorflow/python/eager/execute.py", line 53, in quick_execute
  File "/job/a.py", line 30, in on_batch_end
    boom()
    ~~~~^^
pkg.errors.MyError: effect
"""


def test_the_last_traceback_comes_with_its_cause() -> None:
    block = last_traceback(TRACEBACK.splitlines())
    assert block[-1] == "pkg.errors.MyError: effect"
    assert "KeyError: 'cause'" in block and "KeyError: 'handled long ago'" not in block
    assert last_traceback(["a", "b"]) == last_traceback([]) == []


def test_an_error_has_its_line_and_folded_frames() -> None:
    found = read_error(TRACEBACK)
    assert found is not None and found.place == "a.py:30 (on_batch_end)"
    assert found.line() == "MyError: effect" and not found.follows
    assert found.sentence("Rank 1") == "Rank 1 failed in a.py:30 (on_batch_end): MyError: effect."
    assert list(found.frames) == [
        '  File "/job/a.py", line 2, in <module>',
        "KeyError: 'cause'",
        "During handling of the above exception, another exception occurred:",
        HEADER,
        '  File "/job/a.py", line 3, in <module>',
        "    fit()",
        "  ... 2 frames of keras and tensorflow",
        '  File "/job/a.py", line 30, in on_batch_end',
        "    boom()",
        "    ~~~~^^",
    ]
    assert read_error("no traceback\n") is read_error("") is None


def test_a_program_that_cannot_be_compiled() -> None:
    said = '  File "/job/a.py", line 3\n    f(\n     ^\nSyntaxError: not closed\n'
    found = read_error(f"noise\n{said}")
    assert found is not None and found.line() == "SyntaxError: not closed"
    assert found.place == "a.py:3" and found.frames == ()
    within = f'{HEADER}\n  File "/job/b.py", line 1, in <module>\n    import a\n'
    found = read_error(within + said)
    assert found is not None and found.place == "a.py:3" and len(found.frames) == 5


def test_long_tracebacks_are_shortened() -> None:
    frames = "".join(f'  File "/job/a.py", line {i}, in f\n' for i in range(200))
    found = read_error(f"{HEADER}\n{frames}ValueError: deep\n")
    assert found is not None and len(found.frames) == 24 and "  ... 177 lines" in found.frames


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("ValueError: no\n  more\n[tfring] 10:00 warning: late\n", "ValueError: no more"),
        (
            "tensorflow.python.framework.errors_impl.CancelledError: Graph execution error:\n\n"
            "Detected at node Tfring_x defined at (most recent call last):\n"
            '  File "/job/a.py", line 58, in <module>\n\n'
            f"{KERAS}\n\nrank 1 was lost: gone.\n\t [[{{{{node Tfring_x}}}}]] [Op:__x]\n",
            "CancelledError: rank 1 was lost: gone.",
        ),
        (
            "ResourceExhaustedError: {{function_node __wrapped__Fill_device_/CPU:0}} OOM when "
            "allocating [Op:Fill] name: \n",
            "ResourceExhaustedError: OOM when allocating",
        ),
        (
            "ValueError: Exception encountered when calling Sequential.call().\n\n\x1b[1mInvalid "
            "input shape for input Tensor(dtype=float32).\x1b[0m\n\nArguments received by "
            "Sequential.call():\n  - inputs=x\n",
            "ValueError: Invalid input shape for input Tensor(dtype=float32).",
        ),
        (
            'ValueError: in user code:\n\n    File "/job/u.py", line 8, in f  *\n        raise '
            'ValueError("bad")\n\n    ValueError: bad\n',
            "ValueError: bad",
        ),
    ],
)
def test_what_tensorflow_and_keras_put_around_a_message_is_left_out(said: str, line: str) -> None:
    found = read_error(f'{HEADER}\n  File "/job/a.py", line 1, in <module>\n{said}')
    assert found is not None and found.line() == line
    assert found.place == ("u.py:8 (f)" if "u.py" in said else "a.py:1")
    assert found.follows == (found.kind in ("CancelledError", "KeyboardInterrupt"))


def test_a_long_message_ends_at_a_word() -> None:
    assert one_line("word " * 1000).endswith("word [...]") and len(one_line("x" * 5000)) < 700


def test_frames_of_libraries_are_not_the_users() -> None:
    ours = (f"{PACKAGES}/keras/a.py", "/usr/lib/python3.11/queue.py", "<string>", __file__)
    assert [is_users(path) for path in ours] == [False, False, False, True]
    assert is_users(f"{PACKAGES}/mine/a.py")
    assert not is_users("<frozen importlib._bootstrap>")
    assert not is_users("/tmp/__autograph_generated_file3k.py")


def test_an_error_of_python_in_a_graph_has_the_line_of_the_program() -> None:
    found = read_error(f"""\
{HEADER}
  File "/job/a.py", line 3, in <module>
    fit()
^^^^^
tensorflow.python.framework.errors_impl.UnknownError: {{{{node f}}}} Graph execution error:

Detected at node PyFunc defined at (most recent call last):
  File "/job/a.py", line 3, in <module>

RuntimeError: rank 1: effect
{HEADER}

  File "{PACKAGES}/tensorflow/python/ops/script_ops.py", line 269, in __call__
    ret = func(*args)

RuntimeError: rank 1: effect

\t [[{{{{node PyFunc}}}}]] [Op:__inference_f_5]
""")
    assert found is not None
    assert found.sentence("Rank 1") == "Rank 1 failed in a.py:3: RuntimeError: effect."
    assert not any("Detected" in line or "effect" in line for line in found.frames)
    assert '  File "/job/a.py", line 3, in <module>' in found.frames


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("ModuleNotFoundError: No module named 'horovod'", "--horovod"),
        ("ModuleNotFoundError: No module named 'horovod.torch'", "PYTHONPATH"),
        ("ModuleNotFoundError: it is not installed: pip install it", ""),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 3 TiB", "smaller batch"),
        ("KeyError: 'x'", ""),
    ],
)
def test_what_to_do_about_errors_that_do_not_say_it(line: str, advice: str) -> None:
    found = read_error(f"{HEADER}\n{line}\n")
    assert found is not None
    assert advice in found.advice if advice else found.advice == ""


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("E: rank 1: they differ (rank 0: 8, rank 1: 4)", "E: they differ (rank 0: 8, rank 1: 4)"),
        ("E: 4 on rank 0 and 5 on rank 1", "E: 4 on rank 0 and 5 on rank 1"),
        ("E: what rank 1 has", "E: what  has"),
        ("E: what all have", "E: what all have"),
    ],
)
def test_an_error_without_the_rank_that_says_it(line: str, same: str) -> None:
    assert of_any_rank(line, 1) == same


def test_marks_that_autograph_has_moved_are_folded_with_their_line() -> None:
    found = read_error(f"{HEADER}\n{KERAS}\n    step()\n^^^^^^\nKeyError: 'x'\n")
    assert found is not None and found.line() == "KeyError: 'x'"
    assert found.frames == ("  ... 1 frame of keras",)


def test_an_exception_that_python_ignores_is_not_the_end_of_a_program() -> None:
    ignored = f'Exception ignored in: <function D.__del__>\n{HEADER}\n  File "x"\nE: in del\n'
    error = read_error(f'{HEADER}\n  File "/job/a.py", line 3, in f\nValueError: real\n{ignored}')
    assert error is not None and error.line() == "ValueError: real"


def test_a_message_moves_no_cursor() -> None:
    assert (
        one_line("\x1b[31mred\x1b[0m \x1b]0;title\x07nul\x00 bell\x07 \x1b[?25l") == "red nul bell"
    )

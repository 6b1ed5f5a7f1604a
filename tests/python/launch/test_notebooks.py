"""tfring.run from notebooks, in real kernels."""

import ast
import re

import launcher_tools as tools
import notebooks
import pytest

pytest.importorskip("nbclient", reason="notebooks need nbclient")
pytest.importorskip("ipykernel", reason="notebooks need ipykernel")


def pids_in(text):
    """The process ids of the ranks, as WAITING prints them."""
    (line,) = re.findall(r"BEGUN by (.*)", text)
    return [int(pid) for pid in line.split()]


def cells_with_functions(seen):
    return [
        """
        import os
        import time

        import tfring

        class Pair:
            def __init__(self, rank, size):
                self.rank, self.size = rank, size

        greeting = "grüße"

        def work(path):
            import tfring as hvd

            hvd.init()
            print(greeting, flush=True)
            while not os.path.exists(path):
                time.sleep(0.05)
            return Pair(hvd.rank(), hvd.size())
        """,
        f"""
        pairs = tfring.run(work, [{str(seen)!r}], np=2)
        [(type(p) is Pair, p.rank, p.size) for p in pairs]
        """,
        """
        tfring.init()  # a job of its own, in the kernel
        tfring.run(lambda: os.environ["TFRING_X_RANK"], np=2), tfring.size()
        """,
        """
        def fails():
            import tfring as hvd

            hvd.init()
            if hvd.rank() == 1:
                raise ValueError("not on " + "rank 1")  # here

        tfring.run(fails, np=2)
        """,
        "print('the kernel goes on')",
    ]


def test_functions_of_cells(tmp_path):
    """By value, with what they use; output while they run, results by rank, errors with lines."""
    seen = tmp_path / "seen"

    async def answer(_):
        seen.touch()  # the ranks wait for it: output that came at the end would be too late

    book = notebooks.Notebook(
        cells_with_functions(seen),
        tmp_path,
        {"grüße": answer},
    ).run()
    assert book.errors[:3] == ["", "", ""], book.errors
    assert re.search(r"^(\d.*\| )?grüße", book.printed[1], re.MULTILINE), book.printed
    assert book.results[1]["text/plain"] == "[(True, 0, 2), (True, 1, 2)]"
    assert book.results[2]["text/plain"] == "(['0', '1'], 1)"
    # Neither the error nor the output repeats itself.
    said = "Rank 1 failed in line 6 of a cell (fails): ValueError: not on rank 1.\n"
    assert book.errors[3].startswith(said), book.errors[3]
    assert 'raise ValueError("not on " + "rank 1")  # here' in book.errors[3]
    assert (book.errors[3] + book.printed[3]).count("ValueError:") == 1
    assert "Traceback" not in book.printed[3] and "function_task.py" not in book.errors[3]
    assert book.printed[4] == "the kernel goes on\n"


WAITING = """
import os
import time

import tfring

def wait():
    import numpy as np
    from tfring.runtime._native import core  # without TensorFlow, which takes long to load

    tfring.init()
    pids = core.allgather(np.array([os.getpid()]), name="pids")
    if tfring.rank() == 0:
        print("BEGUN by", *pids, flush=True)
        time.sleep(1000)
    core.barrier(name="never")

def run():
    return tfring.run(wait, np=2)
"""


def test_interrupting_the_kernel_ends_the_ranks(tmp_path):
    """One of them sleeps, one waits in a collective; the next cell runs."""
    cells = [WAITING, "run()", "print('next')"]
    book = notebooks.Notebook(cells, tmp_path, {"BEGUN": notebooks.Notebook.interrupt}).run()
    assert "KeyboardInterrupt" in book.errors[1].splitlines()[-1]
    assert "RuntimeError" not in book.errors[1]
    pids = pids_in(book.printed[1])
    assert len(pids) == 2
    assert not any(tools.alive(pid) for pid in pids)
    assert book.printed[2] == "next\n"


@pytest.mark.slow
def test_the_example(tmp_path):
    cells = notebooks.cells_of(tools.ROOT / "examples" / "notebook.ipynb")
    pytest.importorskip("sklearn")
    book = notebooks.Notebook(cells, tmp_path).run()
    assert book.errors == [""] * len(cells)
    assert "Epoch 8/8" in book.printed[-1]
    accuracies = ast.literal_eval(book.results[-1]["text/plain"])
    assert len(accuracies) == 2
    assert len(set(accuracies)) == 1  # one model, and the same data to validate
    assert accuracies[0] > 0.8


@pytest.mark.slow
def test_the_program_of_the_docs(tmp_path):
    page = (tools.ROOT / "docs" / "notebooks.md").read_text("utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    book = notebooks.Notebook([program], tmp_path).run()
    assert book.errors == [""]
    histories = ast.literal_eval(book.results[0]["text/plain"])
    assert [len(history["loss"]) for history in histories] == [4, 4]

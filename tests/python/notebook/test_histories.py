"""tfring.notebook: pictures of the histories of ranks."""

import sys

import pytest

import tfring
from tfring import notebook

pytest.importorskip("matplotlib")


class History:
    """As what Keras' fit returns."""

    def __init__(self, **history):
        self.history = history


def lines(plot):
    """By metric: label, style and values of every line."""
    return {
        axes.get_title(): [
            (line.get_label(), line.get_linestyle(), list(line.get_ydata())) for line in axes.lines
        ]
        for axes in plot.figure.axes
    }


def test_a_line_for_each_rank_and_metric(tmp_path):
    histories = [
        {"loss": [3.0, 2.0], "val_loss": [3.5, 2.5], "accuracy": [0.1, 0.2]},
        None,  # a rank that has not trained
        History(loss=[4.0, 1.0], accuracy=[0.3, 0.4]),
    ]
    plot = tfring.notebook.plot(histories)
    drawn = lines(plot)
    assert list(drawn) == ["loss", "accuracy"]
    assert drawn["accuracy"] == [("rank 0", "-", [0.1, 0.2]), ("rank 2", "-", [0.3, 0.4])]
    (first, validation, last) = drawn["loss"]
    assert (first, last) == (("rank 0", "-", [3.0, 2.0]), ("rank 2", "-", [4.0, 1.0]))
    assert validation[1:] == ("--", [3.5, 2.5])
    assert validation[0].startswith("_")  # is not in the legend
    loss = plot.figure.axes[0]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["rank 0", "rank 2"]
    assert [list(line.get_xdata()) for line in loss.lines] == [[1, 2]] * 3
    assert list(lines(notebook.plot(histories, ["accuracy"]))) == ["accuracy"]
    assert list(lines(notebook.plot(histories, "accuracy"))) == ["accuracy"]
    assert plot._repr_png_().startswith(b"\x89PNG")
    plot.save(tmp_path / "plot.svg")
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_pyplot_does_not_know_the_figure():
    """It would show it a second time, at the end of the cell."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = pyplot.get_fignums()
    notebook.plot([{"loss": [1.0]}])
    assert pyplot.get_fignums() == before


def test_one_history_validation_alone_and_many_ranks():
    assert lines(notebook.plot({"loss": [1.0]})) == {"loss": [("rank 0", "-", [1.0])]}
    assert lines(notebook.plot([{"val_auc": [1.0]}])) == {"auc": [("rank 0", "--", [1.0])]}
    many = notebook.plot([{"loss": [float(rank)]} for rank in range(40)])
    assert len(many.figure.axes[0].lines) == 40
    assert len({line.get_color() for line in many.figure.axes[0].lines}) == 40
    assert many.figure.axes[0].get_legend() is None


@pytest.mark.parametrize(
    ("histories", "metrics", "error", "text"),
    [
        ([], None, ValueError, "there is nothing"),
        ([None, {}], None, ValueError, "there is nothing"),
        ([{"loss": [1.0]}], ["auc"], ValueError, "no rank has 'auc'; there is loss"),
        ([{"loss": [1.0]}, 0.5], None, TypeError, "rank 1 returned is no history, but float"),
    ],
)
def test_what_is_no_history(histories, metrics, error, text):
    with pytest.raises(error, match=text):
        notebook.plot(histories, metrics)


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "tfring\[notebook\]"'):
        notebook.plot([{"loss": [1.0]}])

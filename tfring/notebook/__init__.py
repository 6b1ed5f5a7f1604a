"""For notebooks: how training went on each rank, as a picture.

histories = tfring.run(train, np=2)  # train returns model.fit(...).history
tfring.notebook.plot(histories)
"""

from tfring.notebook.histories import HistoryPlot, plot

__all__ = ["HistoryPlot", "plot"]

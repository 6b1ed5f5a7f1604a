"""MetricAverageCallback as `import horovod` has it: the plain mean over the ranks."""

from __future__ import annotations

from tfring.keras.callbacks import metrics


class MetricAverageCallback(metrics.MetricAverageCallback):
    """The callback of tfring.keras.callbacks, with exact=False by default."""

    def __init__(self, device: str = "", *, exact: bool = False) -> None:
        super().__init__(device, exact=exact)

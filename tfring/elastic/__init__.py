"""Training that goes on when ranks are lost or join: Horovod's elastic API.

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 10):
            ...
            state.commit()

    train(hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0))

`tfring help elastic` says what happens when. __init__.pyi lists the names.
"""

from tfring.runtime.public_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

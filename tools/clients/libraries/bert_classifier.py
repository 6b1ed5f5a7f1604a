"""KerasHub's BERT classifier, which compiles itself: one line wraps the optimizer that it made."""

import keras_hub
import numpy as np

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(21)
model = keras_hub.models.BertTextClassifier(
    backbone=keras_hub.models.BertBackbone(
        vocabulary_size=50,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=12,
        dropout=0.0,
    ),
    preprocessor=None,
    num_classes=2,
    dropout=0.0,
)
model.optimizer.learning_rate, model.optimizer.epsilon = 0.02, 1e-3
hvd.DistributedOptimizer(model.optimizer)
tokens = np.random.default_rng(20).integers(1, 50, (96, 12))
inputs = {
    "token_ids": tokens,
    "segment_ids": np.zeros_like(tokens),
    "padding_mask": np.ones_like(tokens),
}
labels = (tokens[:, 0] > 25).astype("int32")
data = hvd.shard((inputs, labels), batch_size=32 // hvd.size())
history = model.fit(data, epochs=2, verbose=0, callbacks=hvd.fit_callbacks())
trained = model.weights
losses = history.history["loss"]

"""A small network learns the answers of a larger one, which learns from the data first."""

import keras
import numpy as np

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(7)
HEAT = 3.0


def classifier(width):
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(width, activation="relu"), keras.layers.Dense(3)]
    )


class Student(keras.Model):
    def __init__(self, inner, teacher):
        super().__init__()
        self.inner, self.teacher = inner, teacher
        self.teacher.trainable = False
        self.apart = keras.losses.KLDivergence()

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        hard = super().compute_loss(x, y, y_pred, sample_weight, training)
        soft = keras.ops.softmax(self.teacher(x, training=False) / HEAT)
        return 0.3 * hard + 0.7 * HEAT**2 * self.apart(soft, keras.ops.softmax(y_pred / HEAT))


x = np.random.default_rng(6).normal(size=(160, 8)).astype("float32")
y = x[:, :3].argmax(axis=1)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
teacher = classifier(32)
student = Student(classifier(6), teacher)
losses = []
for model in (teacher, student):
    teacher.trainable = model is teacher
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss)
    data = hvd.shard((x, y), batch_size=32 // hvd.size())
    history = model.fit(data, epochs=3, verbose=0, callbacks=hvd.fit_callbacks())
    losses += history.history["loss"]
trained = student.weights

"""Models with a train_step of their own: several optimizers, tapes, reductions by the user."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import PER_RANK, assert_same_on_all_ranks, broadcast, my_data, whole_data
from tiers import slow

import tfring.keras as hvd
from tfring.keras.model_optimizers import optimizers_of

STEPS = 4
eager = pytest.mark.usefixtures("eager_functions")  # tracing takes most of the time
ADAM = keras.optimizers.Adam


def dense(units: int, inputs: int, seed: int) -> Any:
    initializer = keras.initializers.GlorotUniform(seed=seed)
    return keras.Sequential(
        [keras.layers.Input((inputs,)), keras.layers.Dense(units, kernel_initializer=initializer)]
    )


class Gan(keras.Model):
    """Four features are noise, the other four the real sample; `how` says how it reduces."""

    def __init__(self, how: str, seed: int = 0) -> None:
        super().__init__()
        self.critic, self.maker = dense(1, 4, seed + 1), dense(4, 4, seed + 2)
        self.average = dense(4, 4, seed + 3)  # follows the maker; trained by no gradient
        self.average.set_weights(self.maker.get_weights())
        wrap = hvd.DistributedOptimizer if how == "optimizers" else lambda optimizer: optimizer
        self.optimizers_by_part = {
            "critic": hvd.DistributedOptimizer(ADAM(0.02)) if how == "one" else wrap(ADAM(0.02)),
            "maker": [wrap(ADAM(0.01))],
        }
        self.how = how
        self._earlier = tf.function(self._reduced_by_tape)
        self.built = True

    def call(self, inputs: Any) -> Any:
        return self.maker(inputs)

    def losses_of(self, x: Any) -> tuple[Any, Any]:
        fake, real = self.critic(self.maker(x[:, :4])), self.critic(x[:, 4:])
        critic = tf.reduce_mean(tf.square(real - 1.0) + tf.square(fake))
        return critic, tf.reduce_mean(tf.square(fake - 1.0))

    def variables_of_parts(self) -> tuple[Any, Any]:
        return (
            [v.value for v in self.critic.trainable_variables],
            [v.value for v in self.maker.trainable_variables],
        )

    def _reduced_by_tape(self, x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            losses = self.losses_of(x)
        tape = hvd.DistributedGradientTape(tape)
        pairs = zip(losses, self.variables_of_parts(), strict=True)
        return [tape.gradient(loss, variables) for loss, variables in pairs]

    def gradients(self, x: Any) -> Any:
        if self.how == "tape":
            return self._reduced_by_tape(x)
        if self.how == "function traced before":
            return self._earlier(x)
        with tf.GradientTape(persistent=True) as tape:
            losses = self.losses_of(x)
        parts = self.variables_of_parts()
        own = [tape.gradient(a, b) for a, b in zip(losses, parts, strict=True)]
        if self.how in ("itself", "itself, says so"):
            own = [hvd.grouped_allreduce(gradients, op=hvd.Average) for gradients in own]
        return hvd.mark_reduced(own, parts) if self.how == "itself, says so" else own

    def train_step(self, data: Any) -> Any:
        for_critic, for_maker = self.gradients(data[0])
        critic, maker = self.optimizers_by_part["critic"], self.optimizers_by_part["maker"][0]
        critic.apply(for_critic, self.critic.trainable_variables)
        maker.apply(for_maker, self.maker.trainable_variables)
        for old, new in zip(self.average.weights, self.maker.weights, strict=True):
            old.assign(0.9 * old + 0.1 * new)
        return {"first": data[0][0, 0]}


@functools.cache
def weights_of_one_process(load: Any = lambda model: None) -> Any:
    model = Gan("alone")
    load(model)
    model.compile()
    model.fit(*whole_data(STEPS), batch_size=PER_RANK * hvd.size(), shuffle=False, verbose=0)
    return model.get_weights()


def train(model: Any, *callbacks: Any, **fit: Any) -> None:
    how = {"batch_size": PER_RANK, "shuffle": False, "verbose": 0, **fit}
    model.fit(*my_data(STEPS), callbacks=[*callbacks], **how)


@pytest.mark.parametrize(
    ("how", "eagerly"),
    [
        ("optimizers", False),
        slow("tape", False),
        slow("tape", True),
        ("function traced before", False),
        slow("itself", False),
        ("itself, says so", True),
    ],
)
def test_a_gan_equals_one_process(how: str, eagerly: bool) -> None:
    model = Gan(how, seed=hvd.rank())
    if how == "function traced before":
        model._earlier(tf.zeros([PER_RANK, 8]))
    # On a GPU "auto" is True, and XLA compiles no function that was traced without it.
    jit = False if how == "function traced before" else "auto"
    model.compile(run_eagerly=eagerly, jit_compile=jit)
    train(model, broadcast())
    for ours, theirs in zip(model.get_weights(), weights_of_one_process(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    train(model, broadcast(), epochs=2)  # traces nothing anew
    assert_same_on_all_ranks(model)


@eager
def test_state_that_one_rank_has_loaded_is_given_to_all_before_the_first_step() -> None:
    """For optimizers in attributes: learning rate and moments of rank 0."""

    def load(model: Any) -> None:
        optimizer = model.optimizers_by_part["critic"]
        optimizer.build(model.critic.trainable_variables)
        optimizer.learning_rate = 0.1
        for moment in optimizer._velocities:
            moment.assign(moment + 1.0)

    model = Gan("optimizers", seed=hvd.rank())
    if hvd.rank() == 0:
        load(model)
    model.compile()
    train(model, broadcast())
    assert_same_on_all_ranks(model)
    for ours, theirs in zip(model.get_weights(), weights_of_one_process(load), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@eager
def test_ranks_with_fewer_batches_join() -> None:
    """The optimizers in attributes end up as on the rank that trained longest."""
    counts = [STEPS - rank % 3 for rank in range(hvd.size())]
    x, y = my_data(STEPS)
    mine = slice(0, counts[hvd.rank()] * PER_RANK)
    model = Gan("optimizers", seed=hvd.rank())
    model.compile()
    used = [hvd.callbacks.JoinCallback(), broadcast()]
    model.fit(x[mine], y[mine], batch_size=PER_RANK, shuffle=False, verbose=0, callbacks=used)
    alone, (whole, _) = Gan("alone"), whole_data(STEPS)
    alone.compile()
    for step, batch in enumerate(whole.reshape(STEPS, hvd.size(), PER_RANK, -1)):
        having = [rank for rank, count in enumerate(counts) if step < count]
        alone.train_step((tf.constant(batch[having].reshape(-1, batch.shape[-1])),))
    assert_same_on_all_ranks(model)
    for path in optimizers_of(model):
        ours, theirs = (optimizers_of(each)[path].variables for each in (model, alone))
        hvd.assert_equal(ours)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5)
    for one, other in zip(model.weights, alone.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


class Slower(keras.callbacks.Callback):
    """Halves the learning rate of the maker on rank 0 alone."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        maker = self.model.optimizers_by_part["maker"][0]
        maker.learning_rate = float(maker.learning_rate) * (0.5 if hvd.rank() == 0 else 1.0)


@eager
def test_a_rate_that_one_rank_changed_is_named(several: int) -> None:
    model = Gan("optimizers")
    model.compile()
    match = r"learning rate of optimizers_by_part\['maker'\]\[0\] after epoch 1 \(rank 0: 0\.00499"
    with pytest.raises(RuntimeError, match=match):
        train(model, Slower(), broadcast(), epochs=2)


@eager
@pytest.mark.parametrize(("how", "missing"), [("one", "maker"), ("none", "critic")])
def test_an_optimizer_that_was_forgotten_is_named(several: int, how: str, missing: str) -> None:
    model = Gan(how)
    model.compile()
    kernel = getattr(model, missing).trainable_variables[0].path
    callback = broadcast() if how == "one" else hvd.callbacks.MetricAverageCallback()
    with pytest.raises(RuntimeError, match=f"no gradient was reduced.*{kernel}"):
        train(model, callback)


@eager
def test_an_optimizer_that_was_forgotten_beside_a_process_set(several: int) -> None:
    sets = hvd.add_process_set([0]), hvd.add_process_set(list(range(1, hvd.size())))
    model = Gan("none")
    critic = hvd.DistributedOptimizer(ADAM(0.02), process_set=sets[min(hvd.rank(), 1)])
    model.optimizers_by_part = {"critic": critic, "maker": [ADAM(0.01)]}
    model.compile()
    kernel = model.maker.trainable_variables[0].path
    with pytest.raises(RuntimeError, match=f"no gradient was reduced.*{kernel}"):
        train(model, hvd.callbacks.MetricAverageCallback())
    for each in sets:
        hvd.remove_process_set(each)


def test_optimizers_that_are_wrapped_after_a_step_was_traced() -> None:
    """The next fit traces anew, and all ranks reduce."""
    model = Gan("none")
    model.compile()
    train(model)
    before = model.train_function
    wrapped = [hvd.DistributedOptimizer(ADAM(rate)) for rate in (0.02, 0.01)]
    model.optimizers_by_part = {"critic": wrapped[0], "maker": [wrapped[1]]}
    train(model, broadcast())
    assert model.train_function is not before
    assert_same_on_all_ranks(model)


class OneStep(keras.Model):
    """The simplest train_step."""

    def __init__(self, use_bias: bool = True) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, use_bias=use_bias)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data[0])))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


@eager
def test_compiling_without_a_distributed_optimizer_later_is_noticed(several: int) -> None:
    model = OneStep()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    train(model, broadcast())
    model.compile(keras.optimizers.SGD(0.01))
    with pytest.raises(RuntimeError, match="no gradient was reduced"):
        train(model, broadcast())


@eager
@pytest.mark.parametrize("guard", ["1", "0"])
def test_a_small_step_without_a_reduction_is_found_too(
    several: int, guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights differ by less than rounding could make them."""
    monkeypatch.setenv("TFRING_DIVERGENCE_GUARD", guard)
    model = OneStep(use_bias=False)
    model.compile(keras.optimizers.SGD(1e-6))
    with pytest.raises(RuntimeError, match=r"after batch 2 these weights differ.*no gradient"):
        train(model, broadcast())


@eager
def test_ranks_with_other_numbers_of_batches_that_do_not_reduce(several: int) -> None:
    """Those that train on do not wait for those whose data have ended."""
    model = OneStep()
    model.compile(keras.optimizers.SGD(0.01))
    model(np.zeros((1, 8)))
    batches = (my_data(1) for _ in range(1 if hvd.rank() == 0 else 3))
    with pytest.raises(RuntimeError, match=r"after batch 1 these weights differ.*no gradient"):
        model.fit(batches, verbose=0, callbacks=[broadcast()])


class ReducesItself(OneStep):
    """Its step calls a collective, or has forgotten to."""

    reduces = True

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data[0])))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        if self.reduces:
            gradients = hvd.grouped_allreduce(gradients)
        self.optimizer.apply(gradients, variables)
        return {"loss": loss}


@eager
def test_weights_that_the_first_batch_makes(several: int) -> None:
    """They differ until they are broadcast, which is nobody's fault."""
    keras.utils.set_random_seed(1 + hvd.rank())
    for reduces in (True, False):
        model = ReducesItself()
        model.reduces = reduces
        model.compile(keras.optimizers.SGD(0.01))
        callbacks = hvd.callbacks.MetricAverageCallback(), broadcast()
        if reduces:
            train(model, *callbacks)
            assert_same_on_all_ranks(model)
            continue
        with pytest.raises(RuntimeError, match=r"after batch 2 these weights differ.*no gradient"):
            train(model, *callbacks)


class WithTape(OneStep):
    """Its step has a tape that keeps the bias local, or reduces in a process set."""

    members: Any = None

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data[0]) - 1.0))
        variables = self.trainable_variables
        if self.members is None:
            tape = hvd.DistributedGradientTape(tape)
            tape.register_local_source(variables[1].value)
        else:
            tape = hvd.DistributedGradientTape(tape, process_set=self.members)
        gradients = tape.gradient(loss, [v.value for v in variables])
        self.optimizer.apply(gradients, variables)
        return {"loss": loss}


def test_weights_that_a_tape_leaves_different(several: int) -> None:
    """Local ones, and those that process sets of their own train."""
    model = WithTape()
    model.compile(keras.optimizers.SGD(0.01))
    train(model, hvd.callbacks.MetricAverageCallback(), broadcast(), epochs=2)
    kernel, bias = model.trainable_variables
    hvd.assert_equal([kernel])
    assert len(set(hvd.allgather(bias.value).numpy().tolist())) > 1
    sets = hvd.add_process_set([0]), hvd.add_process_set(list(range(1, hvd.size())))
    model = WithTape()
    model.members = sets[min(hvd.rank(), 1)]
    model.compile(keras.optimizers.SGD(0.01))
    train(model, hvd.callbacks.MetricAverageCallback(), epochs=2)
    for each in sets:
        hvd.remove_process_set(each)


def test_accumulation_equals_one_process() -> None:
    """Nothing changes in the first batch: the weights are watched until they do."""

    def make(distributed: bool) -> Any:
        model = OneStep()
        optimizer = ADAM(0.05, gradient_accumulation_steps=2)
        model.compile(hvd.DistributedOptimizer(optimizer) if distributed else optimizer)
        model(np.zeros((1, 8)))
        model.set_weights([np.full(w.shape, 0.1) for w in model.get_weights()])
        return model

    model, alone = make(True), make(False)
    train(model, broadcast())
    alone.fit(*whole_data(STEPS), batch_size=PER_RANK * hvd.size(), shuffle=False, verbose=0)
    for ours, theirs in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    if hvd.size() > 1:
        forgotten = make(False)
        with pytest.raises(RuntimeError, match="no gradient was reduced"):
            train(forgotten, broadcast())


class AverageWeights(keras.callbacks.Callback):
    """Local SGD: the ranks train alone and average their weights after each epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        mean = hvd.grouped_allreduce([w.value for w in self.model.weights], op=hvd.Average)
        self.model.set_weights([m.numpy() for m in mean])


@eager
def test_a_user_who_averages_weights_says_so(several: int) -> None:
    for own_step in (False, True):
        model = OneStep() if own_step else dense(1, 8, seed=1)
        model.compile(keras.optimizers.SGD(0.01), "mse")
        trusted = hvd.callbacks.BroadcastGlobalVariablesCallback(0, reduced_by_user=True)
        used = [hvd.callbacks.MetricAverageCallback(), trusted, AverageWeights()]
        train(model, *used, epochs=2)
        assert_same_on_all_ranks(model)
        with pytest.raises(RuntimeError, match="reduced_by_user=True"):
            train(model, used[0], broadcast(), epochs=2)


def test_eager_phases_of_wrapped_optimizers_and_tapes() -> None:
    model = dense(1, 8, seed=1)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", run_eagerly=True)
    train(model, broadcast())
    plain, x = keras.optimizers.SGD(0.01), my_data(1)[0]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x)))
    variables = model.trainable_variables
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, [v.value for v in variables])
    plain.apply(gradients, variables)
    train(model, broadcast())
    assert_same_on_all_ranks(model)


def test_gradients_said_to_be_reduced_are_not_reduced_again() -> None:
    variable = keras.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match=r"hvd\.mark_reduced"):
        optimizer.apply(hvd.mark_reduced([tf.constant([1.0])]), [variable])

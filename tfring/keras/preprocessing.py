"""Preprocessing layers: adapted over all ranks, broadcast, and compared.

Vocabularies and bin boundaries are no variables, and a Normalization computes with tensors that it
makes of its weights. So if each rank adapts its layers to its own part of the data, they compute
different things, also after a broadcast of the weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfring.collectives import objects
from tfring.keras.agreement import exchange
from tfring.keras.model_optimizers import reachable
from tfring.ops import arguments
from tfring.runtime import topology

_LOOKUPS = (keras.layers.StringLookup, keras.layers.IntegerLookup)
_LEARNING = (keras.layers.Normalization, keras.layers.Discretization, *_LOOKUPS)
_FUNCTIONS = ("test_function", "predict_function")  # of a model: may hold what a layer had before


def adapt(layer: Any, data: Any, **kwargs: Any) -> None:
    """Adapts a preprocessing layer to the data of all ranks. A collective.

    Each rank gives its own part, which may be of any size; all get the same layer. Except for
    rounding it is that of `layer.adapt` with all the data. The boundaries of Discretization are
    approximate, as there.

    Args:
        layer: Normalization, Discretization, StringLookup, IntegerLookup or TextVectorization of
            Keras 3.
        data: as for `layer.adapt`: this rank's part.
        kwargs: as for `layer.adapt`.

    Raises:
        TypeError: a different layer.
        RuntimeError: the layer cannot be adapted on some rank; on every rank.
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    arguments.require_init("adapt")
    learning = getattr(layer, "_lookup_layer", layer)
    if not isinstance(learning, _LEARNING):
        raise TypeError(
            "hvd.adapt takes Normalization, Discretization, StringLookup, IntegerLookup and "
            f"TextVectorization of Keras 3, not {type(layer).__name__}"
        )
    found, failure = None, None
    try:
        with _not_finalized(layer):
            layer.adapt(data, **kwargs)
        found = _found(learning, data, kwargs.get("steps"))
    except Exception as error:
        failure = error
    what = f"cannot adapt layer {layer.name!r}"
    _merge(learning, exchange(found, failure, "tfring.adapt", what))
    layer.finalize_state()


@contextlib.contextmanager
def _not_finalized(layer: Any) -> Iterator[None]:
    """Lets `adapt` keep its counts within this context."""
    object.__setattr__(layer, "finalize_state", lambda: None)
    try:
        yield
    finally:
        object.__delattr__(layer, "finalize_state")


def _found(layer: Any, data: Any, steps: int | None) -> Any:
    """Returns the counts of a layer in this rank's data."""
    if isinstance(layer, keras.layers.Normalization):
        mean, variance = np.asarray(layer.adapt_mean), np.asarray(layer.adapt_variance)
        return _elements(data, steps), mean.tolist(), variance.tolist()
    if isinstance(layer, keras.layers.Discretization):
        return np.asarray(layer.summary).tolist()
    tables = [layer.token_counts]
    documents = 0
    if layer.output_mode == "tf_idf":
        tables.append(layer.token_document_counts)
        documents = int(layer.num_documents)
    counts = []
    for table in tables:
        tokens, numbers = (each.numpy().tolist() for each in table.export())
        counts.append(list(zip(map(_as_text, tokens), numbers, strict=True)))
    return documents, counts


def _as_text(token: Any) -> Any:
    return token.decode("utf-8", "surrogateescape") if isinstance(token, bytes) else token


def _as_token(text: Any) -> Any:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


def _elements(data: Any, steps: int | None) -> int:
    if not isinstance(data, tf.data.Dataset):
        return int(np.size(data))
    taken = data if steps is None else data.take(steps)
    count = taken.reduce(np.int64(0), lambda total, x: total + tf.size(x, out_type=tf.int64))
    return int(count)


def _merge(layer: Any, found: list[Any]) -> None:
    """Gives a layer the counts of the data of all ranks."""
    if isinstance(layer, keras.layers.Normalization):
        parts = [(c, np.array(mean), np.array(variance)) for c, mean, variance in found if c]
        total = sum(count for count, _, _ in parts)
        mean = sum(count * m for count, m, _ in parts) / total
        spread = sum(count * (v + np.square(m - mean)) for count, m, v in parts) / total
        layer.adapt_mean.assign(mean)
        layer.adapt_variance.assign(spread)
    elif isinstance(layer, keras.layers.Discretization):
        summary = np.concatenate(found, axis=1)
        layer.summary = summary[:, np.argsort(summary[0], kind="stable")]
    else:
        tables = [layer.token_counts]
        if layer.output_mode == "tf_idf":
            tables.append(layer.token_document_counts)
            layer.num_documents.assign(sum(documents for documents, _ in found))
        for position, table in enumerate(tables):
            sums: dict[Any, int] = {}
            for _, counts in found:
                for token, number in counts[position]:
                    sums[token] = sums.get(token, 0) + number
            if sums:
                tokens = tf.constant([_as_token(token) for token in sums], table.key_dtype)
                table.insert(tokens, tf.constant(list(sums.values()), table.value_dtype))


def make_equal(model: Any, root: int) -> None:
    """Gives the preprocessing layers of a model the states of those on one rank; a collective.

    Warns once on rank 0 if other ranks had learnt something else. The layers may be nested, and
    built on some ranks only.
    """
    layers = _layers_of(model)
    hashes = digests(model)
    everywhere = objects.allgather_json(hashes, name="tfring.preprocessing")
    wanted = everywhere[root]
    differ = [path for path in wanted if any(each.get(path) != wanted[path] for each in everywhere)]
    if not differ:
        return
    mine = {path: _state(layers[path]) for path in differ if path in layers}
    states = objects.allgather_json(mine, name="tfring.preprocessing.states")
    for path in differ:
        theirs = states[root][path]
        if theirs is not None and path in layers and hashes[path] != wanted[path]:
            _assign(layers[path], theirs)
    for name in _FUNCTIONS:
        setattr(model, name, None)
    odd = [p for p in differ if any(s.get(p) not in (None, states[root][p]) for s in states)]
    if odd and topology.rank() == 0:
        warnings.warn(
            f"tfring: ranks have adapted {names_of(model, odd)} to different data. All go on with "
            f"what rank {root} has. hvd.adapt(layer, data) adapts a layer to the data of all ranks",
            stacklevel=2,
        )


def names_of(model: Any, paths: list[str]) -> str:
    """Returns the names of layers that the program gave them: that of the owner of a lookup."""
    found = reachable(model)
    inner = [layer for layer in found.values() if hasattr(layer, "_lookup_layer")]
    owners = {id(layer._lookup_layer): layer for layer in inner}
    layers = [owners.get(id(found[path]), found[path]) if path in found else path for path in paths]
    return ", ".join(repr(getattr(layer, "name", layer)) for layer in layers)


def _layers_of(model: Any) -> dict[str, Any]:
    """Returns the layers of a model that learn from data before training, by their paths."""
    found = reachable(model).items()
    return {path: layer for path, layer in found if isinstance(layer, _LEARNING)}


def digests(model: Any) -> dict[str, str]:
    """Returns a hash of the state of each preprocessing layer of a model, by its path."""
    return {path: _digest(layer) for path, layer in _layers_of(model).items()}


def _digest(layer: Any) -> str:
    state = _state(layer)
    if state is not None and isinstance(layer, keras.layers.Normalization):
        state = [np.asarray(layer.mean).tolist(), np.asarray(layer.variance).tolist()]
    return hashlib.blake2b(json.dumps(state).encode(), digest_size=8).hexdigest()


def _state(layer: Any) -> Any:
    """Returns what a layer has learnt, as numbers and texts; None for nothing."""
    if isinstance(layer, keras.layers.Normalization):
        if not layer.built or layer.input_mean is not None:
            return None
        mean, variance = np.asarray(layer.adapt_mean), np.asarray(layer.adapt_variance)
        if not mean.any() and (variance == 1).all():
            return None
        return [layer.get_build_config(), mean.tolist(), variance.tolist()]
    if isinstance(layer, keras.layers.Discretization):
        boundaries = layer.bin_boundaries
        return None if boundaries is None else [float(b) for b in boundaries]
    words = [w if isinstance(w, str) else int(w) for w in layer.get_vocabulary(False)]
    if not words:
        return None
    weights = None
    if layer.output_mode == "tf_idf":
        special = layer.vocabulary_size() - len(words)
        weights = np.asarray(layer.idf_weights)[special : special + len(words)].tolist()
    return [words, weights]


def _assign(layer: Any, state: Any) -> None:
    if isinstance(layer, keras.layers.Normalization):
        config, mean, variance = state
        if not layer.built:
            layer.build_from_config(config)
        layer.adapt_mean.assign(mean)
        layer.adapt_variance.assign(variance)
        layer.finalize_state()
    elif isinstance(layer, keras.layers.Discretization):
        layer.bin_boundaries = state
    else:
        words, weights = state
        layer.set_vocabulary(words, idf_weights=weights)

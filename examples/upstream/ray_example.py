"""Runs the example of Ray's TensorflowTrainer (ray-project/ray#47464) on tfring.

Takes the example from the docstring of the installed Ray, makes the changes of ray.md, and runs it
on CPUs: `python ray_example.py`. `--unchanged` runs it as it is.
"""

import inspect
import re
import sys
import textwrap

import ray
from ray.train.tensorflow import TensorflowTrainer

# What stands in the example, and what stands there on tfring.
CHANGES = (
    (
        "from ray.train.tensorflow import TensorflowTrainer",
        "from ray.train.tensorflow import TensorflowTrainer\n"
        "from tfring.ray import TfringConfig, dataset_shard",
    ),
    (
        '    dataset_shard = train.get_dataset_shard("train")',
        "    import tfring.keras as hvd\n    hvd.init()",
    ),
    ('optimizer="Adam"', "optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam())"),
    ("dataset_shard.to_tf(", 'dataset_shard("train",'),
    ("model.fit(tf_dataset)", "model.fit(tf_dataset, callbacks=hvd.fit_callbacks())"),
    ('"my_checkpoint"', '"my_checkpoint.weights.h5"'),
    (
        "trainer = TensorflowTrainer(",
        "trainer = TensorflowTrainer(tensorflow_config=TfringConfig(),",
    ),
)
STRATEGY = re.compile(
    r"    strategy = .*MultiWorkerMirroredStrategy\(\)\n    with strategy.scope\(\):\n"
    r"((?:        .*\n)+)"
)


def find_example() -> str:
    """Returns the program in the docstring."""
    text = inspect.cleandoc(TensorflowTrainer.__doc__ or "")
    blocks = re.findall(r"\.\. testcode::\n\n((?:    .*\n|\n)+)", text)
    return textwrap.dedent(next(block for block in blocks if "build_model" in block))


def change(example: str) -> str:
    """Makes the changes.

    Raises:
        SystemExit: a line is not there: this Ray has another example.
    """
    for old, new in CHANGES:
        if old not in example:
            sys.exit(f"The example of Ray {ray.__version__} does not have {old!r}.")
        example = example.replace(old, new)
    return STRATEGY.sub(lambda found: textwrap.indent(textwrap.dedent(found[1]), "    "), example)


def main() -> None:
    example = find_example()
    if "--unchanged" not in sys.argv:
        example = change(example)
    # This machine need not have a GPU.
    example = re.sub("num_workers=[0-9]+(, use_gpu=True)?", "num_workers=2", example)
    print(example)
    ray.init(num_cpus=4)
    exec(compile(example, "example", "exec"), {"__name__": "__main__"})
    print("EXAMPLE DONE", flush=True)


if __name__ == "__main__":
    main()

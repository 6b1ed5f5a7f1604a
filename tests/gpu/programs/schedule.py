"""Prints in which order XLA puts a training step's work on a GPU, for several shapes, as JSON.

For each case of [batch, buckets] a list of "dX" (gradient of an activation), "START", "DONE" and
"update".
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import numpy as np
import tensorflow as tf

import tfring

LAYERS, WIDTH = 8, 256
WORK = (
    ("START", 'custom_call_target="tfring_start"'),
    ("DONE", 'custom_call_target="tfring_done"'),
    ("dX", 'grad_x="true"'),
    ("update", r'op_name="[^"]*Assign'),
)


def order(batch: int, buckets: int) -> list[str]:
    with tf.device("GPU:0"):
        weights = [tf.Variable(np.ones((WIDTH, WIDTH), "float32")) for _ in range(LAYERS)]
        x = tf.identity(np.ones((batch, WIDTH), "float32"))

    @tf.function(jit_compile=True, autograph=False)
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.nn.relu(tf.matmul(y, weight))
            loss = tf.reduce_sum(y * y)
        tape = tfring.DistributedGradientTape(tape, num_groups=buckets)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)

    step(x)
    ir = step.experimental_get_compiler_ir(x)(stage="optimized_hlo", platform_name="GPU")
    assert "is_scheduled=true" in ir
    lines = ir[ir.index("ENTRY") :].splitlines()
    return [what for line in lines for what, pattern in WORK if re.search(pattern, line)]


tfring.init()
cases = json.loads(sys.argv[1])
print(json.dumps([order(*case) for case in cases]))

"""The gradient shapes of ResNet-50 with 1000 classes: 161 tensors, 25.6 million parameters."""

from __future__ import annotations

import math

BLOCKS = (3, 4, 6, 3)


def shapes() -> list[tuple[int, ...]]:
    """Shapes of all trainable variables, in forward order.

    Convolutions have no bias; each is followed by a batch normalisation (gamma and beta).
    """
    found: list[tuple[int, ...]] = []

    def convolution(kernel: int, inputs: int, outputs: int) -> None:
        found.append((kernel, kernel, inputs, outputs))
        found.extend([(outputs,), (outputs,)])

    convolution(7, 3, 64)
    channels = 64
    for stage, blocks in enumerate(BLOCKS):
        width = 64 << stage
        for block in range(blocks):
            if block == 0:
                convolution(1, channels, 4 * width)  # the shortcut
            convolution(1, channels, width)
            convolution(3, width, width)
            convolution(1, width, 4 * width)
            channels = 4 * width
    found.extend([(channels, 1000), (1000,)])
    return found


def parameters() -> int:
    return sum(math.prod(shape) for shape in shapes())

"""How the number of ranks changes the batch and the learning rate. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Policy:
    """The size of a batch, and the factor of the learning rate.

    `Policy(256)`: a step has 256 samples on all ranks together, and training does not depend on the
    number of ranks. Ranks' shares differ by one sample at most.

    `Policy(32, per_rank=True)`: each rank takes 32 samples a step, and the learning rate is
    multiplied by the number of ranks. After a change the rate moves in a straight line to its new
    value; at the start of training, from the rate of a single rank (Goyal et al., "Accurate, large
    minibatch SGD", 2017).

    Attributes:
        batch: samples of a step, of all ranks together or of each rank.
        per_rank: whether `batch` is for each rank.
        ramp_steps: steps until a new learning rate is reached; 0: at once.
    """

    batch: int
    per_rank: bool = False
    ramp_steps: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1 or self.ramp_steps < 0:
            raise ValueError(
                f"a batch needs at least one sample and a ramp at least 0 steps, not {self.batch} "
                f"and {self.ramp_steps}"
            )

    def global_batch(self, size: int) -> int:
        """Returns the samples of a batch on all ranks together.

        Args:
            size: the number of ranks.
        """
        return self.batch * size if self.per_rank else self.batch

    def factor(self, size: int) -> float:
        """Returns the factor of the learning rate after the ramp.

        Args:
            size: the number of ranks.
        """
        return float(size) if self.per_rank else 1.0


@dataclass(frozen=True)
class Ramp:
    """The change of the learning rate's factor from one value to another.

    Attributes:
        start: the first value.
        goal: the last value.
        steps: the number of steps.
        done: how many of them are done.
    """

    start: float = 1.0
    goal: float = 1.0
    steps: int = 0
    done: int = 0

    @property
    def factor(self) -> float:
        """The factor of the next step."""
        if self.done >= self.steps:
            return self.goal
        return self.start + (self.goal - self.start) * self.done / self.steps

    def after(self, steps: int) -> Ramp:
        """Returns the ramp after more steps."""
        return replace(self, done=self.done + steps)

    def toward(self, goal: float, steps: int) -> Ramp:
        """Returns the ramp from here to another goal; itself if it has that goal already."""
        return self if goal == self.goal else Ramp(self.factor, goal, steps)

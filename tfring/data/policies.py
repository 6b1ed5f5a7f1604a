"""What a change of the number of ranks does to the batch and the learning rate. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Policy:
    """How large a batch is, and by what the learning rate is multiplied.

    `Policy(256)`: a step has 256 samples on all ranks together, and training does not depend on
    the number of ranks. A rank's share may differ by one sample from another's.

    `Policy(32, per_rank=True)`: each rank takes 32 samples a step, and the learning rate is
    multiplied by the number of ranks. After a change it gets there in a straight line, and at the
    start of training from the rate of a single rank (Goyal et al., "Accurate, large minibatch
    SGD", 2017).

    Attributes:
        batch: Samples of a step, of all ranks together or of each rank.
        per_rank: Whether they are of each rank.
        ramp_steps: How many steps the way to a new learning rate takes; 0: none.
    """

    batch: int
    per_rank: bool = False
    ramp_steps: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1 or self.ramp_steps < 0:
            raise ValueError(
                f"a batch has at least one sample and a ramp no less than 0 steps, not "
                f"{self.batch} and {self.ramp_steps}"
            )

    def global_batch(self, size: int) -> int:
        """Returns the samples of a batch on all ranks together.

        Args:
            size: the number of ranks.
        """
        return self.batch * size if self.per_rank else self.batch

    def factor(self, size: int) -> float:
        """Returns what the learning rate is multiplied by once the ramp is over.

        Args:
            size: the number of ranks.
        """
        return float(size) if self.per_rank else 1.0


@dataclass(frozen=True)
class Ramp:
    """The way of the learning rate's factor from one value to another.

    Attributes:
        start: where it began.
        goal: where it goes.
        steps: how long the way is.
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
        """Returns where it is after more steps."""
        return replace(self, done=self.done + steps)

    def toward(self, goal: float, steps: int) -> Ramp:
        """Returns the way from here to another goal; itself if it goes there already."""
        return self if goal == self.goal else Ramp(self.factor, goal, steps)

"""What a change of the number of ranks does to the batch and the learning rate. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Policy:
    """How large a batch is, and by what the learning rate is multiplied. See the functions below.

    Attributes:
        batch: samples of a batch: of all ranks together, or per rank.
        per_rank: which of the two.
        ramp_steps: over how many steps the factor of the learning rate goes to a new value.
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


def fixed_global(batch: int) -> Policy:
    """Returns the policy under which training does not depend on the number of ranks.

    Batch and learning rate stay what they are; each rank gets its share of the batch, which may
    differ by one sample between ranks.

    Args:
        batch: samples of a step on all ranks together.

    Raises:
        ValueError: there are none.
    """
    return Policy(batch)


def scaled(rows: int, ramp_steps: int = 0) -> Policy:
    """Returns the policy under which more ranks take larger steps.

    The batch of a rank stays what it is, and the learning rate is multiplied by the number of
    ranks. After a change it gets there in a straight line, and at the start of training from the
    rate of a single rank (Goyal et al., "Accurate, large minibatch SGD", 2017).

    Args:
        rows: samples of a step per rank.
        ramp_steps: how many steps the way to a new learning rate takes; 0 is at once.

    Raises:
        ValueError: there are no rows, or less than 0 steps.
    """
    return Policy(rows, per_rank=True, ramp_steps=ramp_steps)


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

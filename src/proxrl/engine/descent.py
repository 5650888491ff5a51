"""The gradient of a loss over all ranks, and the optimizer's step against it."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from torch import Tensor

from proxrl.bonus.api import Learner
from proxrl.bonus.calling import learner_losses
from proxrl.common.tree import tree_map
from proxrl.config import Coefficients, Phase
from proxrl.engine.api import Compute, Outputs
from proxrl.engine.flat import FlatParameters
from proxrl.engine.optimizers import Optimizer
from proxrl.types import Batch, Terms
from proxrl.world.api import World

# (library, outputs, batch, coefficients) -> (terms, gradient with respect to the outputs)
Loss: TypeAlias = Callable[[Any, Outputs, Batch, Coefficients], tuple[Terms, Outputs]]


class GradientDescent:
    """`differentiate` computes the gradient of a minibatch, `step` takes an optimizer step against it. Both leave all ranks with
    the same numbers.
    """

    def __init__(
        self,
        compute: Compute,
        parameters: FlatParameters,
        optimizer: Optimizer,
        world: World,
        accumulate: int,
        learners: tuple[Learner, ...] = (),
    ) -> None:
        self.compute, self.parameters, self.optimizer, self.world = compute, parameters, optimizer, world
        self.accumulate, self.learners = accumulate, learners

    def differentiate(self, minibatch: Batch, loss: Loss, now: Coefficients, phase: Phase) -> Tensor:
        """Compute the gradient of the minibatch's loss, in `accumulate` microbatches; return the loss terms, in the order of
        `Terms`, then those of the learners, which learn together with the policy.
        """
        compute = self.compute
        self.parameters.message.zero_()
        for microbatch in microbatches(minibatch, self.accumulate):
            terms, gradient = loss(compute.library, compute.forward(microbatch), microbatch, now)
            losses = learner_losses(self.learners if phase.policy else (), microbatch, compute.features)
            compute.backward(gradient.only(phase.policy, phase.value), terms, losses)
        # Weights sum to 1 over all ranks, so the sum of the ranks' gradients is the gradient of the mean.
        self.world.sum_(self.parameters.message)
        return self.parameters.terms.clone()

    def step(self, now: Coefficients, phase: Phase) -> None:
        """Clip the gradient's global norm (core detail 11), then take an optimizer step, by default of Adam (core detail 3)."""
        self.parameters.clip_gradient(now.max_grad_norm)
        self.optimizer.step(now, phase)


def microbatches(minibatch: Batch, count: int) -> Iterator[Batch]:
    """Split a minibatch into consecutive microbatches of whole sequences. Weights stay those of the minibatch, so that the losses
    and gradients of the microbatches add up to its own.
    """
    if count == 1:
        yield minibatch
        return
    sequences = minibatch.sequences
    length = len(minibatch.weight) // max(1, sequences)
    for part in (slice(sequences * k // count, sequences * (k + 1) // count) for k in range(count)):
        if part.stop > part.start:
            rows = slice(part.start * length, part.stop * length)
            fields = {name: tree_map(lambda leaf, rows=rows: leaf[rows], tree) for name, tree in vars(minibatch).items()}
            yield Batch(**fields | {"state": tuple(tensor[part] for tensor in minibatch.state)})

"""Random network distillation (Burda et al., 2018): a reward for observations that were seldom seen.

    target       a random network of the observation that a step leads to, never trained
    predictor    learns to predict its outputs, and is right about what it has often seen
    reward       the mean square of the predictor's error, divided by the standard deviation of its running discounted return

The reward has a value stream of its own, with --rnd-gamma, which the ends of episodes do not cut: what is new stays new in the
next episode, and dying to begin again should not be avoided at any price.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from proxrl.bonus.api import Learner, LearnerSetup, Stream
from proxrl.bonus.arguments import check_count, check_number, check_switch
from proxrl.bonus.networks import bonus_encoder, layers, seeded
from proxrl.bonus.transitions import Transitions, bare_space, mean_over_ranks, row_numbers, unmasked
from proxrl.bonus.whitening import make_whitening
from proxrl.common.seeding import Purpose, generator
from proxrl.config import Coefficients
from proxrl.policy.statistics import EPSILON, RunningMoments
from proxrl.types import Batch, Rollout


class Rnd(Learner):
    """Curiosity by the error of a predictor. Its statistics include a rollout before they whiten and scale it."""

    terms = ("rnd_predictor",)
    sees_final_obs = True
    running_return: Tensor  # [environments of all ranks] never reset, as if a run were one episode
    iteration: Tensor  # of the random numbers that choose rows

    def __init__(
        self,
        setup: LearnerSetup,
        update_fraction: float = 0.25,
        episodic: bool = False,
        gae_lambda: float | None = None,
        feature_size: int | None = None,
    ) -> None:
        super().__init__()
        check_number("rnd", "update_fraction", update_fraction, 0.001, 1)
        check_switch("rnd", "episodic", episodic)
        if gae_lambda is not None:
            check_number("rnd", "gae_lambda", gae_lambda, 0, 1)
        if feature_size is not None:
            check_count("rnd", "feature_size", feature_size, least=1)
        self.setup, self.update_fraction, self.episodic, self.gae_lambda = setup, update_fraction, episodic, gae_lambda
        self.preprocess = make_whitening(bare_space(setup.observation_space), setup.frame_stack)
        with seeded(setup.config.seed, 1):
            (target, size), (predictor, _) = (bonus_encoder(setup.config, self.preprocess.output_space, 1) for _ in range(2))
            outputs = feature_size or size
            self.target = nn.Sequential(target, layers(size, outputs)).requires_grad_(False)
            # Two layers more than the target, so that it can learn to imitate it.
            self.predictor = nn.Sequential(predictor, layers(size, size, size, outputs))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's type stubs
        self.returns = RunningMoments(())
        self.register_buffer("running_return", torch.zeros(setup.config.num_envs))
        self.register_buffer("iteration", torch.zeros((), dtype=torch.int64))
        self.mean_reward = 0.0

    def stream(self, now: Coefficients) -> Stream:
        gae_lambda = now.gae_lambda if self.gae_lambda is None else self.gae_lambda
        return Stream(now.rnd_gamma, gae_lambda, now.rnd_coef, self.episodic)

    @torch.no_grad()
    def reward(self, rollout: Rollout, now: Coefficients) -> NDArray[np.float32]:
        world, shape = self.setup.world, rollout.valid.shape
        self.transitions = Transitions(rollout, self.setup.observation_space, self.running_return.device)
        self.preprocess.merge(unmasked(rollout.obs, self.setup.observation_space), rollout.valid, world)
        errors, targets = [], []
        for rows in self.transitions.chunks():
            obs = self.preprocess(self.transitions.after(rows))
            targets.append(self.target(obs))
            errors.append(mean_square(self.predictor(obs), targets[-1]))
        self.targets = torch.cat(targets)  # kept, because the target is the same in all epochs
        self.chosen = self.choose_rows(shape[0])
        self.iteration += 1
        error = torch.cat(errors).cpu().numpy().reshape(shape)
        self.returns.merge(self.running_returns(error, rollout.valid, now.rnd_gamma)[rollout.valid], world)
        reward = error / np.float32(np.sqrt(float(self.returns.variance) + EPSILON))
        self.mean_reward = mean_over_ranks(reward[rollout.valid], world)
        return np.where(rollout.valid, reward, 0).astype(np.float32)

    def running_returns(self, reward: NDArray[np.float32], valid: NDArray[np.bool_], gamma: float) -> NDArray[np.float32]:
        """Return the discounted return up to each step [T, N]. Rows that do not count are passed over."""
        first, count = self.setup.first_env, self.setup.num_envs
        running = self.running_return[first : first + count].cpu().numpy()
        returns = np.empty_like(reward)
        for t in range(len(reward)):
            running = np.where(valid[t], np.float32(gamma) * running + reward[t], running)
            returns[t] = running
        # Every rank has those of all environments, so that any rank can save them, for any number of ranks.
        everyone = torch.zeros(len(self.running_return))
        everyone[first : first + count] = torch.from_numpy(running)
        self.setup.world.sum_(everyone)
        self.running_return.copy_(everyone)
        return returns

    def choose_rows(self, steps: int) -> NDArray[np.bool_]:
        """Draw the rows [T * N] that train the predictor in this iteration: with many environments, all rows would teach it so
        fast that nothing stays new for long. Each environment has its own stream, wherever it runs.
        """
        first, iteration = self.setup.first_env, int(self.iteration)
        envs = range(first, first + self.setup.num_envs)
        draws = [generator(self.setup.config.seed, Purpose.BONUS, env, iteration).random(steps) for env in envs]
        chosen: NDArray[np.bool_] = np.stack(draws, 1).ravel() < self.update_fraction
        return chosen

    def loss(self, batch: Batch, features: Tensor | None) -> Mapping[str, Tensor]:
        numbers = row_numbers(batch.rows)
        chosen = self.chosen[numbers]
        rows, device = numbers[chosen], self.targets.device
        if not len(rows):
            return {"rnd_predictor": torch.zeros((), device=device)}
        weight = torch.as_tensor(batch.weight)[torch.from_numpy(chosen).to(device)] / self.update_fraction
        predicted = self.predictor(self.preprocess(self.transitions.after(rows)))
        return {"rnd_predictor": weight @ mean_square(predicted, self.targets[torch.from_numpy(rows).to(device)])}

    def metrics(self) -> dict[str, float]:
        return {"bonus/rnd_reward": self.mean_reward}


def mean_square(predicted: Tensor, target: Tensor) -> Tensor:
    """Return the mean square of the error in each row [B]."""
    return ((predicted - target) ** 2).mean(1)

"""The intrinsic curiosity module (Pathak et al., 2017): a reward for transitions that are hard to predict.

    features           f(s): an encoder, normalized
    inverse model      predicts the action a from f(s) and f(s'), and trains the features
    forward model      predicts f(s') from f(s) and a
    reward             half the mean square of the forward model's error, times --icm-coef, added to the environment's

Features that predict actions contain what actions influence, so what can't be influenced, such as noise in the picture, earns
nothing.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from proxrl.bonus.action_code import ActionCode
from proxrl.bonus.api import Learner, LearnerSetup
from proxrl.bonus.arguments import check_count
from proxrl.bonus.networks import bonus_encoder, layers, seeded
from proxrl.bonus.transitions import Transitions, bare_space, mean_over_ranks, row_numbers, unmasked
from proxrl.bonus.whitening import CLIP
from proxrl.common.tree import tree_map
from proxrl.config import Coefficients
from proxrl.policy.preprocess import make_preprocess
from proxrl.types import Batch, Rollout


class Icm(Learner):
    """Curiosity by the error of a forward model. Terminal transitions lead to the true last observation of the episode."""

    terms = ("icm_forward", "icm_inverse")
    sees_final_obs = True

    def __init__(self, setup: LearnerSetup, feature_size: int | None = None) -> None:
        super().__init__()
        if feature_size is not None:
            check_count("icm", "feature_size", feature_size, least=2)
        self.setup = setup
        self.preprocess = make_preprocess(bare_space(setup.observation_space), normalize=True, clip=CLIP)
        self.action_code = ActionCode(setup.action_space)
        with seeded(setup.config.seed, 0):
            encoder, size = bonus_encoder(setup.config, self.preprocess.output_space)
            features = feature_size or size
            self.encoder = nn.Sequential(encoder, layers(size, features))
            self.inverse = layers(2 * features, features, self.action_code.size)
            self.forward_model = layers(features + self.action_code.size, features, features)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's type stubs
        self.mean_reward = 0.0

    @torch.no_grad()
    def reward(self, rollout: Rollout, now: Coefficients) -> NDArray[np.float32]:
        world = self.setup.world
        device = next(self.parameters()).device
        self.transitions = Transitions(rollout, self.setup.observation_space, device)
        self.preprocess.merge(unmasked(rollout.obs, self.setup.observation_space), rollout.valid, world)
        # As the environment received them: the inverse model can't know of what clipping removed.
        actions = torch.from_numpy(rollout.action.reshape(-1, *rollout.action.shape[2:]))
        self.codes = self.action_code(tree_map(lambda leaf: leaf.to(device), self.setup.policy.head.to_env(actions)))
        errors = [self.errors(rows)[0].cpu().numpy() for rows in self.transitions.chunks()]
        reward = np.concatenate(errors).reshape(rollout.valid.shape)
        counts = rollout.valid & self.transitions.known.reshape(rollout.valid.shape)
        self.mean_reward = mean_over_ranks(reward[counts], world)
        return np.where(counts, now.icm_coef * reward, 0).astype(np.float32)

    def loss(self, batch: Batch, features: Tensor | None) -> Mapping[str, Tensor]:
        rows = row_numbers(batch.rows)
        known = torch.from_numpy(self.transitions.known[rows].astype(np.float32))
        weight = torch.as_tensor(batch.weight) * known.to(self.codes.device)
        forward, inverse = self.errors(rows)
        return {"icm_forward": weight @ forward, "icm_inverse": weight @ inverse}

    def errors(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return the errors [B] of the forward and of the inverse model.

        The inverse loss alone trains the features. The forward loss would make them constant, which is easy to predict.
        """
        before, after = (self.features(obs) for obs in (self.transitions.before(rows), self.transitions.after(rows)))
        code = self.codes[torch.from_numpy(rows).to(self.codes.device)]
        inverse = self.action_code.error(self.inverse(torch.cat([before, after], 1)), code)
        predicted = self.forward_model(torch.cat([before.detach(), code], 1))
        return 0.5 * ((predicted - after.detach()) ** 2).mean(1), inverse

    def features(self, obs: object) -> Tensor:
        """Return features [B, F] with mean 0 and variance 1 in each row: the inverse loss would let them grow without limit, and
        the reward with them.
        """
        encoded: Tensor = self.encoder(self.preprocess(obs))
        return layer_norm(encoded, encoded.shape[1:])

    def metrics(self) -> dict[str, float]:
        return {"bonus/icm_reward": self.mean_reward}

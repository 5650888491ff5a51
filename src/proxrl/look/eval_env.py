"""The environment of an evaluation, if it is not that of training: the settings that make it, and whether the policy fits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import gymnasium

from proxrl.config import Config
from proxrl.config.config import env_label
from proxrl.config.resolve import EnvLike, callable_name
from proxrl.envs.api import Environments, env_kwargs_hint
from proxrl.envs.given import GivenEnv
from proxrl.envs.spaces import HasSpaces, space_difference
from proxrl.errors import ProxRLError


class EvalEnv(NamedTuple):
    """What --eval-env and --eval-env-kwargs give; both None for the environment of training."""

    env: EnvLike | None = None  # None: that of training
    kwargs: dict[str, Any] | None = None  # None: those of training if `env` is that of training or a callable, otherwise none

    @property
    def is_own(self) -> bool:
        """Whether evaluations are in the environment of training."""
        return self.env is None and not self.kwargs

    def config(self, run: Config) -> Config:
        """Return the settings of a run with its environment replaced by this one, which has the same wrappers and stacks."""
        if self.is_own:
            return run
        name = run.env if self.env is None else self.env if isinstance(self.env, str) else callable_name(self.env)
        kwargs = dict(self.kwargs or {})
        takes_those_of_run = (callable(self.env) or name == run.env) and not isinstance(self.env, GivenEnv)
        if self.env is None or (self.kwargs is None and takes_those_of_run):
            kwargs = run.env_kwargs | kwargs
        # One custom environment may replace another. Otherwise, another environment may not exist where the run's own does, but
        # if that one is slow, this one may be too.
        workers = run.vector == "workers" and (":" in name or name in gymnasium.registry)
        kept = workers or (":" in run.env and ":" in name)
        return run.replace(env=name, env_kwargs=kwargs, vector=run.vector if kept else "auto")

    def label(self, run: Config) -> str:
        """Return the name of the environment with its arguments."""
        config = self.config(run)
        return env_label(config.env, config.env_kwargs)

    @contextmanager
    def naming_its_flag(self, run: Config) -> Iterator[None]:
        """If the environment can't be made with its arguments, let the error name the flag that gave them."""
        try:
            yield
        except ProxRLError as error:
            hint = env_kwargs_hint(self.config(run).env_kwargs)
            if not self.kwargs or not str(error).endswith(hint):
                raise
            raise ProxRLError(str(error).removesuffix(hint) + env_kwargs_hint(self.kwargs, "--eval-env-kwargs")) from error


OWN_ENV = EvalEnv()


def check_fits(environments: Environments, trained: HasSpaces, label: str) -> None:
    """Raise a `ProxRLError` if a policy trained in `trained` does not fit the environments of an evaluation."""
    difference = space_difference(environments, trained.observation_space, trained.action_space)
    if difference:
        raise ProxRLError(f"the policy can't be evaluated in {label}: {difference}")

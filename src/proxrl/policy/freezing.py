"""`--freeze`: parts of a policy that keep the values with which a run starts, usually those of another run (`--init-from`)."""

from collections.abc import Callable, Sequence

from torch import nn

from proxrl.config import Config
from proxrl.errors import ProxRLError
from proxrl.policy.policy import Policy
from proxrl.policy.statistics import RunningMoments

# What each name of config/validate.py stands for. With a shared trunk, encoder and memory belong to the policy.
PARTS: dict[str, Callable[[Policy], Sequence[nn.Module | None]]] = {
    "encoder": lambda policy: (policy.actor, policy.critic),
    "memory": lambda policy: (policy.memory, policy.critic_memory),
    "head": lambda policy: (policy.action, policy.head),
    "policy": lambda policy: (policy.actor, policy.memory, policy.action, policy.head),
    "value": lambda policy: (policy.critic, policy.critic_memory, policy.value),
    "statistics": lambda _: (),
}


def freeze(policy: Policy, config: Config) -> None:
    """Freeze what --freeze names: its parameters do not learn, and if it reads observations, their statistics stay as they are,
    because the same weights compute something else from observations that are scaled otherwise.
    """
    statistics = [module for module in policy.preprocess.modules() if isinstance(module, RunningMoments)]
    for part in config.freeze or ():
        modules = [module for module in PARTS[part](policy) if module is not None]
        reads = part == "statistics" or any(module in (policy.actor, policy.critic) for module in modules)
        parameters = [parameter for module in modules for parameter in module.parameters()]
        frozen = statistics if reads else []
        if not parameters and not frozen:
            raise ProxRLError(f"--freeze {part}: this run has nothing of that kind that could change; leave it out")
        if frozen and config.init_from is None:
            raise ProxRLError(
                f"--freeze {part} keeps the statistics of --normalize-observations too, which are empty without --init-from;"
                " give a run to start from, or --no-normalize-observations"
            )
        for parameter in parameters:
            parameter.requires_grad_(False)
        for moments in frozen:
            moments.frozen = True
    if config.freeze and not any(policy.groups()):
        raise ProxRLError(f"--freeze {' '.join(config.freeze)} leaves nothing to learn; leave a part out")

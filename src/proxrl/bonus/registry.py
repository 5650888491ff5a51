"""Builds the learners that the settings name."""

from collections.abc import Callable

import torch

from proxrl.bonus.api import Learner, LearnerSetup, Stream
from proxrl.bonus.arguments import check_names
from proxrl.bonus.calling import named
from proxrl.bonus.icm import Icm
from proxrl.bonus.rnd import Rnd
from proxrl.common.seeding import Purpose, integer_seed
from proxrl.config import flag
from proxrl.config.calls import Call, parse_calls
from proxrl.config.plugins import build_plugin
from proxrl.errors import ProxRLError
from proxrl.types import Terms

# The bonuses that --bonus knows by name.
BONUSES: dict[str, Callable[..., Learner]] = {"icm": Icm, "rnd": Rnd}


def build_learners(setup: LearnerSetup, device: torch.device) -> tuple[Learner, ...]:
    """Build the learners of a run; those that have a value stream get its number, from 1 on."""
    calls = [(name, call) for name in ("bonus", "learner") for call in parse_calls(name, getattr(setup.config, name))]
    for built_in in BONUSES:
        if sum(call.name == built_in for _, call in calls) > 1:
            raise ProxRLError(f"--bonus names {built_in} twice; name it once, and change its weight by --{built_in}-coef")
    learners = tuple(build_learner(number, name, call, setup).to(device) for number, (name, call) in enumerate(calls))
    check_terms(learners)
    now, count = setup.config.at(0), 0
    for learner in learners:
        with named(learner, "stream"):
            own = isinstance(learner.stream(now), Stream)
        count += own
        learner.column = count if own else 0
    return learners


def build_learner(number: int, name: str, call: Call, setup: LearnerSetup) -> Learner:
    """Build the learner that a setting names. Its initial weights depend on the seed alone, so they are the same on every rank.

    Like the policy, it is in eval mode: the random numbers of dropout are not part of a checkpoint.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer_seed(setup.config.seed, Purpose.LEARNER, number))
        if call.name in BONUSES:
            check_names(call.name, BONUSES[call.name], call.kwargs)
            learner = BONUSES[call.name](setup, **call.kwargs)
        else:
            learner = build_plugin(name, call.name, (setup,), call.kwargs)
    if not isinstance(learner, Learner):
        raise ProxRLError(f"{flag(name)} {call.name} returned {type(learner).__name__}, but must return a proxrl.Learner")
    learner.label = f"{flag(name)} {call.name}"
    return learner.eval()


def check_terms(learners: tuple[Learner, ...]) -> None:
    """Raise an error if the names of loss terms are not names, or if two terms would be logged under the same one."""
    taken = dict.fromkeys(Terms._fields, "PPO")
    for learner in learners:
        if not isinstance(learner.terms, tuple) or not all(isinstance(name, str) for name in learner.terms):
            raise ProxRLError(f'{learner.label}: its terms are {learner.terms!r}, but must be a tuple of names: ("mine",)')
        for name in learner.terms:
            if name in taken:
                raise ProxRLError(f"{learner.label}: {taken[name]} has a term {name} too; give it another name in its terms")
            taken[name] = learner.label
        wrong = [parameter.dtype for parameter in learner.parameters() if parameter.dtype != torch.float32]
        if wrong:
            raise ProxRLError(f"{learner.label}: its parameters are {wrong[0]}, but must be torch.float32; use .float()")


def learning_parameters(learners: tuple[Learner, ...], others: list[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """Return the parameters that learners train, each once, without `others`: a learner may hold a part of the policy."""
    seen = {id(parameter) for parameter in others}
    found = []
    for parameter in (parameter for learner in learners for parameter in learner.parameters()):
        if parameter.requires_grad and id(parameter) not in seen:
            seen.add(id(parameter))
            found.append(parameter)
    return found

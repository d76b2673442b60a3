"""The shape of PPO: a rollout of an environment without gradients, then minibatches over what it gave."""

import time

import torch
from digests import print_digests  # type: ignore[import-not-found]

torch.set_num_threads(1)
torch.manual_seed(0)
ITERATIONS, ROLLOUT, EPOCHS, MINIBATCHES = 8, 32, 2, 4
actor = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
critic = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
state = torch.zeros(1, 4)


def act(state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the next state of the environment, and its reward; an environment that takes 1 ms."""
    with torch.no_grad():
        action = torch.distributions.Categorical(logits=actor(state)).sample()
        critic(state)
    time.sleep(0.001)
    return 0.9 * state + action.float() - 0.5, -state.square().sum(1)


for _ in range(ITERATIONS):
    states, rewards = [], []
    for _ in range(ROLLOUT):
        states.append(state)
        state, reward = act(state)
        rewards.append(reward)
    seen, returns = torch.cat(states), torch.cat(rewards)
    for _ in range(EPOCHS):
        for part in torch.randperm(ROLLOUT).chunk(MINIBATCHES):
            advantage = returns[part] - critic(seen[part]).squeeze(1)
            likely = torch.distributions.Categorical(logits=actor(seen[part])).logits.max(1).values
            loss = -(likely * advantage.detach()).mean() + advantage.square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
            optimizer.step()
            print(loss.item().hex())
print_digests(torch.nn.ModuleList([actor, critic]), optimizer)

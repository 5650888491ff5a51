"""Nested states as JSON and tensors."""

import json
from pathlib import Path

import numpy as np
import torch

from proxrl.runs import checkpoint
from proxrl.runs.state_tree import pack, unpack


def test_states_survive_a_checkpoint(tmp_path: Path) -> None:
    state = {
        "a.b": np.arange(6).reshape(2, 3).T,
        "a": {"b": np.arange(3.0)[::-1], "c": [torch.eye(2)[:, :1], None, 2**70, "text", True]},
        "empty": np.zeros((0, 2), np.float32),
    }
    tensors: dict[str, torch.Tensor] = {}
    packed = pack(state, "callback.0.Tally", tensors)
    checkpoint.save(tmp_path / "one.safetensors", tensors, {"state": packed})
    loaded, document = checkpoint.load(tmp_path / "one.safetensors")
    restored = unpack(json.loads(json.dumps(document["state"])), loaded)
    np.testing.assert_array_equal(restored["a.b"], state["a.b"], strict=True)
    np.testing.assert_array_equal(restored["a"]["b"], [2.0, 1.0, 0.0])
    np.testing.assert_array_equal(restored["empty"], state["empty"], strict=True)
    assert torch.equal(restored["a"]["c"][0], torch.tensor([[1.0], [0.0]]))
    assert restored["a"]["c"][1:] == [None, 2**70, "text", True]

"""FGSM by torchattacks as a whole program, for `bench/attacks.py --part command`.

    python bench/peer_fgsm.py CHECKPOINT ARCH MEAN STD NPZ

ARCH is JSON; the network's definition is ours, since torchattacks has none.
"""

import json
import sys

import numpy as np
import torch
import torchattacks

from rbtools import models
from rbtools.models.normalize import Normalized

file, arch, mean, std, data = sys.argv[1:]
torch.set_num_threads(1)
weights = torch.load(file, map_location="cpu", weights_only=False)
weights = weights.get("state_dict", weights)
network = models.build(json.loads(arch), classes=10, shape=(3, 32, 32))
network.load_state_dict(
    {name.removeprefix("1."): value for name, value in weights.items() if name[:2] != "0."}
)
model = Normalized(network, json.loads(mean), json.loads(std)).eval()
stored = np.load(data)
images = torch.from_numpy(stored["x_test"]).permute(0, 3, 1, 2).float() / 255
labels = torch.from_numpy(stored["y_test"]).long()
attack = torchattacks.FGSM(model, eps=8 / 255)
right = {"acc": 0, "fgsm.8": 0}
for some, truth in zip(images.split(128), labels.split(128), strict=True):
    perturbed = attack(some, truth)
    with torch.no_grad():
        right["acc"] += int((model(some).argmax(1) == truth).sum())
        right["fgsm.8"] += int((model(perturbed).argmax(1) == truth).sum())
print(json.dumps({name: value / len(labels) for name, value in right.items()}))

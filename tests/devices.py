"""Devices for tests of arithmetic: the CPU, and a GPU if one is available."""

import torch

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

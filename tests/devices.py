"""What tests of arithmetic run on: the processor, and an accelerator where there is one."""

import torch

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

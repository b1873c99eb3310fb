import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch

from terrine.device import fixed_kernels, mixed_precision, reproducible, resolve_device
from terrine.errors import SettingError
from tests.devices import DEVICES


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Pretend to be a machine with or without accelerators."""

    def pretend(cuda: bool, mps: bool) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return pretend


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_takes_cuda_then_mps_then_the_cpu(machine, cuda: bool, mps: bool, expected: str) -> None:
    machine(cuda, mps)
    assert resolve_device() == resolve_device("auto") == torch.device(expected)


def test_a_named_device_is_taken_even_when_a_faster_one_is_there(machine) -> None:
    machine(cuda=True, mps=True)
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("cuda:0") == torch.device("cuda", 0)


@pytest.mark.parametrize(("name", "kind"), [("cuda", "CUDA"), ("cuda:0", "CUDA"), ("mps", "MPS")])
def test_a_device_this_machine_lacks_is_refused(machine, name: str, kind: str) -> None:
    machine(cuda=False, mps=False)
    with pytest.raises(SettingError, match=rf"device={name}: torch finds no {kind} device"):
        resolve_device(name)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "CPU!"])
def test_a_name_that_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match=rf"device={name}: not a torch device"):
        resolve_device(name)


@pytest.mark.parametrize("block", [fixed_kernels, reproducible])
def test_cudnn_is_used_and_chooses_by_shapes_alone(monkeypatch, block):
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False):
        with block(torch.device("cuda")):
            assert torch.backends.cudnn.enabled
            assert torch.backends.cudnn.deterministic
            assert not torch.backends.cudnn.benchmark
        assert torch.backends.cudnn.benchmark


@pytest.mark.parametrize("device", DEVICES)
def test_products_are_in_half_precision_on_cuda_alone(device: str) -> None:
    matrix = torch.ones(2, 2, device=device)
    with mixed_precision(device):
        assert (matrix @ matrix).dtype == (torch.bfloat16 if device == "cuda" else torch.float32)


def test_blocks_of_two_threads_that_overlap_stay_fixed_until_the_last_one_ends():
    """Two GPUs, two threads: the first block must not restore the flags while the second still runs."""
    cudnn, inside, first_left = torch.backends.cudnn, threading.Barrier(2), threading.Event()
    seen = []

    def first():
        with fixed_kernels("cuda:0"):
            inside.wait(10)
        first_left.set()

    def second():
        with fixed_kernels("cuda:1"):
            inside.wait(10)
            first_left.wait(10)
            seen.append((cudnn.deterministic, cudnn.benchmark))

    with cudnn.flags(enabled=True, benchmark=True, deterministic=False):
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(first), pool.submit(second)]:
                done.result(30)
        assert seen == [(True, False)]
        assert (cudnn.deterministic, cudnn.benchmark) == (False, True)

"""The operators for CUDA without a device: emulated kernels, and explanations of calls."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mhla_torch import kernels

KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)


class Emulated(TorchDispatchMode):
    """Runs the operators for CUDA on tensors on the CPU: csrc/cuda, with kernels in an emulator."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.namespace != "mhla" or not torch._C._dispatch_has_kernel_for_dispatch_key(
                function.name(), "PrivateUse1"):
            return function(*arguments, **(options or {}))
        schema = function._schema.arguments
        named = dict(zip((argument.name for argument in schema), arguments)) | (options or {})
        return function.redispatch(KEYS, *(named.get(argument.name, argument.default_value)
                                           for argument in schema))


def build(folder):
    """Builds the operators of MHLA_TORCH_CSRC, by default ../csrc. -> the library"""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["cmake", "-S", Path(__file__).with_name("emulation"), "-B", folder,
               f"-DPython_EXECUTABLE={sys.executable}"]
    if "MHLA_TORCH_CSRC" in os.environ:
        command.append(f"-DMHLA_TORCH_CSRC={os.environ['MHLA_TORCH_CSRC']}")
    if shutil.which("ninja") and not (folder / "CMakeCache.txt").exists():
        command += ["-G", "Ninja"]
    for step in (command, ["cmake", "--build", folder]):
        done = subprocess.run(step, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "libemulation.so"


@pytest.fixture(scope="session")
def emulation(tmp_path_factory):
    """Loads the emulated operators, which are built in MHLA_TORCH_EMULATION if that is set."""
    folder = os.environ.get("MHLA_TORCH_EMULATION")
    torch.ops.load_library(build(Path(folder) if folder else tmp_path_factory.mktemp("emulation")))


@pytest.fixture
def emulated(emulation):
    """Operators on tensors on the CPU run the emulated kernels in this test."""
    with Emulated():
        yield


@pytest.fixture
def with_kernels(monkeypatch):
    """Explains calls of fake tensors as if kernels for CUDA were built."""
    monkeypatch.setattr(kernels, "WITHOUT_CUDA", "")
    monkeypatch.setattr(kernels, "is_old", lambda device: False)

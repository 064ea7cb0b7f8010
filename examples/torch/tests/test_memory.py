"""Allocations of the package's library that fail, one after another, in a process of its own."""

import ctypes
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from test_operators import KINDS, call, tensors

FAILING = Path(__file__).with_name("failing_memory.cpp")


def code_of(library):
    """Begin and end of a loaded library's code."""
    text = Path("/proc/self/maps").read_text()
    begin, end = re.search(rf"^(\w+)-(\w+) r-xp .*{re.escape(library)}", text, re.M).groups()
    return int(begin, 16), int(end, 16)


def results(kind, save):
    """An output and gradients."""
    leaves = [t.requires_grad_() for t in tensors(dtype=torch.float32)]
    options = {} if kind.startswith("linear") else {"save": save}
    out = call(kind, *leaves, **options)
    out.square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def equal(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def fail_all(preloaded):
    """Fails each allocation of every form. Prints how many there were."""
    failing = ctypes.CDLL(preloaded)
    libraries = (preloaded, "libstdc++.so", "libmhla_torch.so")
    code = (ctypes.c_size_t * 6)(*(edge for each in libraries for edge in code_of(each)))
    for kind, save in [*((kind, "inputs") for kind in KINDS), ("causal", "summaries")]:
        expected, which = results(kind, save), 0
        while True:
            failing.fail_allocation(code, ctypes.c_long(which))
            try:
                got, error = results(kind, save), ""
            except (RuntimeError, MemoryError) as raised:
                got, error = None, str(raised)
            if not failing.has_failed():
                break
            # A call may do without memory, as std::stable_sort does.
            assert "bad_alloc" in error if got is None else equal(got, expected), (which, error)
            assert equal(results(kind, save), expected), f"{kind} after allocation {which}"
            which += 1
        print(f"{kind}, {save}: {which} cases")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="memory can fail with glibc only")
def test_an_allocation_that_fails_is_an_error(tmp_path):
    preloaded = tmp_path / "failing.so"
    subprocess.run([os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-fPIC", "-shared", FAILING,
                    "-o", preloaded], check=True)
    done = subprocess.run([sys.executable, __file__, preloaded], capture_output=True, text=True,
                          env=os.environ | {"LD_PRELOAD": str(preloaded)})
    assert done.returncode == 0, done.stdout + done.stderr
    counts = [int(count) for count in re.findall(r"(\d+) cases", done.stdout)]
    assert len(counts) == len(KINDS) + 1 and min(counts) > 3, done.stdout


if __name__ == "__main__":
    fail_all(sys.argv[1])

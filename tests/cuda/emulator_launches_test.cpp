// What a kernel may do that begins before the one before has ended, by the emulator.

#include <gtest/gtest.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

#include "emulator/planted.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"

namespace emulator {
namespace {

namespace ptx = mhla::cuda::ptx;

/// The thread's number of an array.
template <class X>
X* own(X* array) {
  return array + 64 * ptx::ctaid_x() + ptx::tid_x();
}

/// Writes out[0..127] and reads out[128..255].
void write_some(const Arrays& a) {
  ptx::st_global_f32(own(a.out), ptx::ld_global_f32(own(a.out) + 128));
}

/// The fault of the last of some launches of two blocks, the second and those after it early.
std::string fault_of(std::initializer_list<Body> bodies, bool early, bool bug) {
  std::vector<float> in(Arrays::kCount), out(Arrays::kCount);
  Device device(1);
  device.track("in", in.data(), 4 * Arrays::kCount, Access::kRead);
  device.track("out", out.data(), 4 * Arrays::kCount, Access::kReadWrite);
  std::size_t left = bodies.size();
  for (const Body body : bodies) {
    --left;
    const bool first = left + 1 == bodies.size();
    try {
      device.launch<PlantedKernel<64>>(2, {{in.data(), out.data(), bug}, body}, early && !first);
    } catch (const Fault& fault) {
      return (left != 0 ? "not the last: " : "") + std::string(fault.what());
    }
  }
  return "";
}

/// The second kernel has a fault that says `text` if it has the bug and begins early, and no other.
void expect_fault(Body second, const std::string& text) {
  EXPECT_NE(fault_of({write_some, second}, true, true).find(text), std::string::npos)
      << fault_of({write_some, second}, true, true);
  EXPECT_EQ(fault_of({write_some, second}, true, false), "");
  EXPECT_EQ(fault_of({write_some, second}, false, true), "");
}

TEST(EmulatedLaunches, ReadsOfWhatTheKernelBeforeWroteComeAfterTheWait) {
  const auto early = [](const Arrays& a) {
    if (!a.bug) ptx::griddepcontrol_wait();
    ptx::ld_global_f32(own(a.out));
    if (a.bug) ptx::griddepcontrol_wait();
  };
  expect_fault(early, "wrote is not ordered after griddepcontrol.wait");
  const auto of_another_thread = [](const Arrays& a) {
    if (ptx::tid_x() == 0) ptx::griddepcontrol_wait();
    if (!a.bug) ptx::bar_sync();
    ptx::ld_global_f32(own(a.out));
    if (a.bug) ptx::bar_sync();
  };
  expect_fault(of_another_thread, "wrote is not ordered after griddepcontrol.wait");
}

TEST(EmulatedLaunches, WhatTheKernelBeforeWroteIsNotConstant) {
  const auto constant = [](const Arrays& a) {
    ptx::griddepcontrol_wait();
    if (a.bug) {
      ptx::ld_global_nc_f32(own(a.out));
    } else {
      ptx::ld_global_f32(own(a.out));
    }
  };
  expect_fault(constant, "as constant of what a kernel wrote that may run with this one");
}

TEST(EmulatedLaunches, WritesOfWhatTheKernelBeforeUsedComeAfterTheWait) {
  const auto written = [](const Arrays& a) {
    if (!a.bug) ptx::griddepcontrol_wait();
    ptx::st_global_f32(own(a.out), 1);
    if (a.bug) ptx::griddepcontrol_wait();
  };
  expect_fault(written, "uses is not ordered after griddepcontrol.wait");
  const auto read = [](const Arrays& a) {
    if (!a.bug) ptx::griddepcontrol_wait();
    ptx::st_global_f32(own(a.out) + 128, 1);
    if (a.bug) ptx::griddepcontrol_wait();
  };
  expect_fault(read, "uses is not ordered after griddepcontrol.wait");
}

TEST(EmulatedLaunches, InputsMayBeReadBeforeTheWait) {
  const auto inputs = [](const Arrays& a) {
    ptx::ld_global_nc_f32(own(a.in));
    ptx::ld_global_f32(own(a.out) + 512);
    ptx::griddepcontrol_wait();
  };
  EXPECT_EQ(fault_of({write_some, inputs}, true, false), "");
}

TEST(EmulatedLaunches, EveryBlockWaitsSoThatThoseAfterItKnow) {
  const auto some = [](const Arrays& a) {
    if (!a.bug || ptx::ctaid_x() == 0) ptx::griddepcontrol_wait();
  };
  expect_fault(some, "ends without griddepcontrol.wait");
  const auto launches = [](const Arrays& a) {
    if (a.bug) ptx::griddepcontrol_launch_dependents();
    ptx::griddepcontrol_wait();
    ptx::griddepcontrol_launch_dependents();
  };
  expect_fault(launches, "launch_dependents is not ordered after griddepcontrol.wait");
  // So that the third may read what the first wrote without one.
  const auto waits = [](const Arrays&) { ptx::griddepcontrol_wait(); };
  const auto reads = [](const Arrays& a) {
    ptx::ld_global_nc_f32(own(a.out));
    ptx::griddepcontrol_wait();
  };
  EXPECT_EQ(fault_of({write_some, waits, reads}, true, false), "");
}

}  // namespace
}  // namespace emulator

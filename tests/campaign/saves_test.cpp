// A save that is killed, or that meets a full or a read-only disk, leaves the old file or the new.
//
// MHLA_KILLS is the number of saves that are killed, 1,000 by default.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "mhla/io/safetensors.hpp"
#include "support/random.hpp"
#include "support/temporary_folder.hpp"

namespace mhla::test {
namespace {

namespace fs = std::filesystem;

/// A file of 120,000 equal numbers.
void save(const fs::path& path, float number) {
  const std::vector<float> numbers(120'000, number);
  SafetensorsWriter writer;
  writer.add("x", {120'000}, numbers);
  writer.write(path);
}
/// The number that a file has, or NaN if it has several.
float saved(const fs::path& path) {
  const Matrix<float> all = Safetensors::read(path).matrix<float>("x");
  return (all.array() == all(0, 0)).all() ? all(0, 0) : std::nanf("");
}

TEST(Saves, ThatAreKilledLeaveTheOldFileOrTheNew) {
  const char* const text = std::getenv("MHLA_KILLS");
  const int kills = text == nullptr ? 1000 : std::atoi(text);
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "x";
  const auto begin = std::chrono::steady_clock::now();
  save(path, 0);
  const auto time = std::chrono::steady_clock::now() - begin;
  const auto longest = std::chrono::duration_cast<std::chrono::microseconds>(2 * time).count();
  Random rng(1);
  int replaced = 0;
  for (int i = 1; i <= kills && !HasFailure(); ++i) {
    const float before = saved(path);
    const pid_t child = fork();
    if (child == 0) {
      save(path, static_cast<float>(i));
      _exit(0);
    }
    ASSERT_GT(child, 0);
    usleep(static_cast<useconds_t>(rng.integer(0, static_cast<Index>(longest))));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const float after = saved(path);
    EXPECT_TRUE(after == before || after == static_cast<float>(i)) << after;
    replaced += after == static_cast<float>(i) ? 1 : 0;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      if (entry.path() != path) fs::remove(entry.path());  // of the killed process
    }
  }
  EXPECT_GT(replaced, 0);
  EXPECT_LT(replaced, kills);
  std::cout << replaced << " were complete\n" << kills << " cases\n";
}

/// A file system of its own, with room for one file.
TEST(Saves, MeetAFullDiskAndAReadOnlyOne) {
  const TemporaryFolder folder;
  const char* const disk = folder.path().c_str();
  if (mount("tmpfs", disk, "tmpfs", 0, "size=700k") != 0) {
    GTEST_SKIP() << "only a superuser may mount a small disk";
  }
  const fs::path path = folder.path() / "x";
  save(path, 1);
  const auto expect_refused = [&] {
    try {
      save(path, 2);
      ADD_FAILURE() << "was written";
    } catch (const safetensors_error& e) {
      EXPECT_EQ(e.fault(), SafetensorsFault::kFile) << e.what();
    }
    EXPECT_EQ(saved(path), 1);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
  };
  expect_refused();
  EXPECT_EQ(mount("tmpfs", disk, "tmpfs", MS_REMOUNT | MS_RDONLY, ""), 0);
  expect_refused();
  umount(disk);
  std::cout << "2 cases\n";
}

}  // namespace
}  // namespace mhla::test

#include "mhla/io/safetensors_writer.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/raw_file.hpp"
#include "support/temporary_folder.hpp"

// Receives every call of fsync in this program.
namespace {
int syncs = 0;  // calls so far
bool sync_fails = false;
}  // namespace
extern "C" int fsync(int file) {
  ++syncs;
  if (!sync_fails) return static_cast<int>(syscall(SYS_fsync, file));
  errno = EIO;
  return -1;
}

namespace mhla::test {
namespace {

namespace fs = std::filesystem;
using F = SafetensorsFault;

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(SafetensorsWriter, WritesTheCanonicalForm) {
  const std::vector<float> a = {1, 2};
  const std::array<std::uint8_t, 3> b = {7, 8, 9};
  const std::vector<double> c = {3};
  SafetensorsWriter writer;
  writer.add("b", {3}, b);
  writer.add("a", {2, 1}, a);
  writer.add("c", {}, c);
  writer.add("A", {2}, a);
  writer.add("0", {Dtype::kUnknown, {1}, std::as_bytes(std::span(b)).first(1), "F8\"x"});
  writer.add_metadata("z", "12");
  writer.add_metadata("y", "\"\\\b\f\n\r\t\x01\x1F/\xC3\xA9");
  const std::string text = text_of(writer.to_bytes());
  const std::string header = R"({"__metadata__":{"y":"\"\\\b\f\n\r\t\u0001\u001f/é","z":"12"},)"
                             R"("c":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                             R"("A":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
                             R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[16,24]},)"
                             R"("b":{"dtype":"U8","shape":[3],"data_offsets":[24,27]},)"
                             R"("0":{"dtype":"F8\"x","shape":[1],"data_offsets":[27,28]}})";
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof length);
  ASSERT_NE(header.size() % 8, 0u);  // otherwise nothing needs padding
  EXPECT_EQ(length % 8, 0u);
  EXPECT_LT(length, header.size() + 8);
  EXPECT_EQ(text.substr(8, header.size()), header);
  EXPECT_EQ(text.substr(8 + header.size(), length - header.size()),
            std::string(length - header.size(), ' '));
  EXPECT_EQ(text.size(), 8 + length + 28);
  EXPECT_EQ(text.substr(8 + length + 24), "\7\10\11\7");
}

TEST(SafetensorsWriter, OrderOfCallsDoesNotMatter) {
  const std::vector<float> values = {1, 2, 3};
  SafetensorsWriter one, other;
  one.add("x", {3}, values);
  one.add("y", {1, 3}, values);
  one.add_metadata("a", "1");
  one.add_metadata("b", "2");
  other.add_metadata("b", "2");
  other.add("y", {1, 3}, values);
  other.add_metadata("a", "1");
  other.add("x", {3}, values);
  EXPECT_EQ(one.to_bytes(), other.to_bytes());
}

TEST(SafetensorsWriter, NothingIsAFileToo) {
  EXPECT_EQ(text_of(SafetensorsWriter().to_bytes()), std::string("\10\0\0\0\0\0\0\0{}      ", 16));
}

TEST(SafetensorsWriter, RefusesWhatTheReaderWouldRefuse) {
  const std::vector<float> two = {1, 2};
  SafetensorsWriter writer;
  writer.add("there", {2}, two);
  writer.add_metadata("there", "x");
  const Bytes before = writer.to_bytes();
  const auto tensor = [&](std::string_view name, std::vector<Index> shape) {
    return fault_of([&] { writer.add(name, std::move(shape), two); });
  };
  const auto metadata = [&](std::string_view key, std::string_view text) {
    return fault_of([&] { writer.add_metadata(key, text); });
  };
  EXPECT_EQ(tensor("there", {2}), F::kDuplicateKey);
  EXPECT_EQ(tensor("__metadata__", {2}), F::kReservedName);
  EXPECT_EQ(tensor(std::string(1025, 'x'), {2}), F::kNameTooLong);
  EXPECT_EQ(tensor("\xFF", {2}), F::kUtf8);
  EXPECT_EQ(tensor("x", {1, 1, 1, 1, 1, 1, 1, 1, 2}), F::kRank);
  EXPECT_EQ(tensor("x", {-1, -2}), F::kNotAnInteger);
  EXPECT_EQ(tensor("x", {Index{1} << 32, Index{1} << 32}), F::kOverflow);
  for (const std::vector<Index>& shape : {std::vector<Index>{}, {1}, {3}, {0}, {2, 2}, {2, 0}}) {
    EXPECT_EQ(tensor("x", shape), F::kSize);
  }
  const auto typed = [&](Dtype dtype, std::string unknown, std::vector<Index> shape) {
    const auto bytes = std::as_bytes(std::span(two));
    return fault_of([&] { writer.add("x", {dtype, std::move(shape), bytes, std::move(unknown)}); });
  };
  EXPECT_EQ(typed(Dtype::kUnknown, "", {2}), F::kUnknownDtype);
  EXPECT_EQ(typed(Dtype::kUnknown, "F32", {2}), F::kUnknownDtype);
  EXPECT_EQ(typed(Dtype::kF32, "F8", {2}), F::kUnknownDtype);
  EXPECT_EQ(typed(Dtype::kUnknown, "\xFF", {2}), F::kUtf8);
  EXPECT_EQ(typed(Dtype::kUnknown, std::string(1025, 'F'), {2}), F::kNameTooLong);
  EXPECT_EQ(typed(Dtype::kUnknown, "F8", {65}), F::kSize);
  EXPECT_EQ(typed(Dtype::kUnknown, "F8", {0}), F::kSize);
  EXPECT_EQ(metadata("there", "y"), F::kDuplicateKey);
  EXPECT_EQ(metadata(std::string(1025, 'x'), ""), F::kNameTooLong);
  EXPECT_EQ(metadata("\x80", ""), F::kUtf8);
  EXPECT_EQ(metadata("x", "\x80"), F::kUtf8);
  EXPECT_EQ(writer.to_bytes(), before);
}

TEST(SafetensorsWriter, RefusesAHeaderBeyondTheFormat) {
  SafetensorsWriter writer;
  writer.add_metadata("k", std::string(100'000'000, 'x'));
  EXPECT_EQ(fault_of([&] { writer.to_bytes(); }), F::kHeaderTooLong);
  const TemporaryFolder folder;
  EXPECT_EQ(fault_of([&] { writer.write(folder.path() / "x"); }), F::kHeaderTooLong);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(SafetensorsWriter, ReplacesAFile) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "x.safetensors";
  std::ofstream(path) << std::string(5000, 'x');
  const std::vector<float> values = {1, 2, 3};
  SafetensorsWriter writer;
  writer.add("x", {3}, values);
  writer.write(path);
  EXPECT_EQ(contents(path), text_of(writer.to_bytes()));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

/// A file that was just saved.
struct Saved {
  fs::path path;
  SafetensorsWriter writer;

  explicit Saved(const fs::path& to) : path(to) {
    static constexpr float kValues[] = {1, 2, 3};
    writer.add("x", {3}, std::span(kValues));
    writer.write(path);
  }
  bool complete() const { return contents(path) == text_of(writer.to_bytes()); }
  std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(path.parent_path()), {});
  }
  struct stat status() const {
    struct stat result;
    EXPECT_EQ(stat(path.c_str(), &result), 0);
    return result;
  }
};

TEST(SafetensorsWriter, KeepsModeOwnerAndGroupOfAFileThatItReplaces) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "x";
  const mode_t umask_before = umask(022);
  EXPECT_EQ(Saved(path).status().st_mode & 07777, 0644u);
  for (const unsigned mode : {0600u, 0400u, 0444u, 0640u, 0666u, 0777u}) {
    fs::permissions(path, static_cast<fs::perms>(mode));
    const Saved saved(path);
    EXPECT_EQ(saved.status().st_mode & 07777, mode);
    EXPECT_TRUE(saved.complete());
  }
  umask(umask_before);
  if (chown(path.c_str(), 4242, 4243) != 0) GTEST_SKIP() << "only the superuser may change owners";
  const Saved saved(path);
  EXPECT_EQ(saved.status().st_uid, 4242u);
  EXPECT_EQ(saved.status().st_gid, 4243u);
  EXPECT_EQ(saved.status().st_mode & 07777, 0777u);
}

TEST(SafetensorsWriter, FollowsSymbolicLinks) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "other");
  const fs::path file = folder.path() / "other" / "file";
  for (const auto& [link, to] :
       {std::pair("relative", fs::path("other/file")), {"absolute", file}, {"twice", "relative"}}) {
    const fs::path path = folder.path() / link;
    fs::create_symlink(to, path);
    if (link != std::string("relative")) std::ofstream(file) << "old";  // otherwise a dangling link
    const Saved saved(path);
    EXPECT_EQ(fs::read_symlink(path), to);
    EXPECT_FALSE(fs::is_symlink(file));
    EXPECT_EQ(contents(file), contents(path));
    EXPECT_TRUE(saved.complete()) << link;
    EXPECT_EQ(std::distance(fs::directory_iterator(file.parent_path()), {}), 1);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 4);
}

TEST(SafetensorsWriter, TakesNamesOfAnyLength) {
  const TemporaryFolder folder;
  for (const std::size_t length : {1u, 250u, 255u}) {
    EXPECT_TRUE(Saved(folder.path() / std::string(length, 'x')).complete());
  }
  EXPECT_EQ(Saved(folder.path() / "x").files(), 3);
}

/// Expects that writing to `path` fails with a message that names it, and changes neither the
/// folder nor its files.
void expect_untouched(const SafetensorsWriter& writer, const fs::path& path,
                      const fs::path& folder) {
  const auto state = [&] {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      files[entry.path().string()] =
          fs::is_regular_file(entry.symlink_status()) ? contents(entry.path()) : "";
    }
    return files;
  };
  const auto before = state();
  try {
    writer.write(path);
    ADD_FAILURE() << "written: " << path;
  } catch (const safetensors_error& e) {
    EXPECT_EQ(e.fault(), F::kFile) << e.what();
    EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos) << e.what();
  }
  EXPECT_EQ(state(), before);
}

TEST(SafetensorsWriter, LeavesNothingBehindWhereItCannotWrite) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1, 2, 3};
  SafetensorsWriter writer;
  writer.add("x", {3}, values);
  std::ofstream(folder.path() / "file") << "old";
  fs::create_directories(folder.path() / "folder" / "inside");
  expect_untouched(writer, folder.path() / "absent" / "x", folder.path());
  expect_untouched(writer, folder.path() / "file" / "x", folder.path());
  expect_untouched(writer, folder.path() / "folder", folder.path());
  expect_untouched(writer, folder.path() / std::string(300, 'x'), folder.path());
  expect_untouched(writer, "", folder.path());
  fs::create_symlink("cycle", folder.path() / "cycle");
  expect_untouched(writer, folder.path() / "cycle", folder.path());
  fs::create_directory_symlink("folder", folder.path() / "link");
  expect_untouched(writer, folder.path() / "link", folder.path());
  mkfifo((folder.path() / "pipe").c_str(), 0600);
  expect_untouched(writer, folder.path() / "pipe", folder.path());
  EXPECT_TRUE(fs::is_fifo(folder.path() / "pipe"));
  fs::permissions(folder.path() / "folder", fs::perms::owner_read | fs::perms::owner_exec);
  if (std::FILE* file = std::fopen((folder.path() / "folder" / "probe").c_str(), "w")) {
    std::fclose(file);  // the superuser may write anywhere
    fs::remove(folder.path() / "folder" / "probe");
  } else {
    expect_untouched(writer, folder.path() / "folder" / "x", folder.path());
  }
  fs::permissions(folder.path() / "folder", fs::perms::owner_all);
}

TEST(SafetensorsWriter, SyncsWhatItHasWrittenBeforeItReplaces) {
  const TemporaryFolder folder;
  const int before = syncs;
  const Saved saved(folder.path() / "x");
  EXPECT_EQ(syncs, before + 1);
  sync_fails = true;
  expect_untouched(saved.writer, saved.path, folder.path());
  sync_fails = false;
}

TEST(SafetensorsWriter, LeavesNothingBehindWhereTheDiskIsFull) {
  const TemporaryFolder folder;
  const std::vector<float> values(100000, 1.0f);
  SafetensorsWriter writer;
  writer.add("x", {100000}, values);
  const fs::path path = folder.path() / "x";
  std::ofstream(path) << "old";
  // A limit on the size of files simulates a full disk.
  struct rlimit usual;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t limit : std::initializer_list<rlim_t>{0, 1, 100, 4096, 100000, 399999}) {
    const struct rlimit small = {limit, usual.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    expect_untouched(writer, path, folder.path());
  }
  setrlimit(RLIMIT_FSIZE, &usual);
  signal(SIGXFSZ, handler);
  writer.write(path);
  EXPECT_EQ(contents(path), text_of(writer.to_bytes()));
}

}  // namespace
}  // namespace mhla::test

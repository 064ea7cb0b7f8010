// Writes, reads and replaces files on Windows whose names are outside of the code page.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "mhla/io/sharded_safetensors.hpp"

namespace {

void expect(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "windows: not true: %s\n", what);
  std::exit(1);
}

}  // namespace

int main() {
  const std::filesystem::path folder(u8"\u00E9\u20AC \u65E5\u672C \U0001F600");
  std::filesystem::create_directory(folder);
  const std::vector<float> numbers{1, 2, 3};
  mhla::SafetensorsWriter writer;
  writer.add("x", {3}, numbers);
  const auto path = folder / u8"\u65E5\u672C.safetensors";
  for (int times = 0; times < 2; ++times) {  // the second replaces the first
    writer.write(path);
    const auto file = mhla::Safetensors::read(path);
    expect(file.matrix<float>("x")(0, 2) == 3, "what is written is read");
  }

  std::ofstream(folder / "index.json")
      << "{\"weight_map\":{\"x\":\"\xE6\x97\xA5\xE6\x9C\xAC.safetensors\"}}";
  std::vector<float> copy(3);
  mhla::ShardedSafetensors::read(folder / "index.json").copy_to<float>("x", copy);
  expect(copy == numbers, "an index names its shards in UTF-8");

  const auto absent = folder / u8"\u65E5";
  const std::string name = "\xE6\x97\xA5: ";
  try {
    mhla::Safetensors::read(absent);
    expect(false, "an absent file is refused");
  } catch (const mhla::safetensors_error& e) {
    expect(std::string(e.what()).find(name) != std::string::npos, "errors name files in UTF-8");
  }
  try {
    writer.write(absent / "x");
    expect(false, "an absent folder is refused");
  } catch (const mhla::safetensors_error& e) {
    expect(std::string(e.what()).find("\xE6\x97\xA5") != std::string::npos, "so does the writer");
  }
  std::filesystem::remove_all(folder);
}

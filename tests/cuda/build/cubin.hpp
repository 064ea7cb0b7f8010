#pragma once

/// \file
/// Counts the instructions of each entry function of a cubin without a disassembler. A cubin is an
/// ELF file with the code of function F in section .text.F. The low 12 bits of each instruction of
/// 16 bytes are its opcode. Source of the opcodes: the output of nvdisasm -hex for sm_80 and
/// sm_90a.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

namespace mhla::cuda::build {

enum class Opcode : std::uint32_t {
  kMma = 0x23c,          // HMMA.16816, HMMA.1688
  kWgmma = 0xdf0,        // HGMMA
  kMatrices = 0x83b,     // LDSM
  kCopy = 0xfae,         // LDGSTS
  kTensorLoad = 0x5b4,   // UTMALDG
  kTensorStore = 0x3b5,  // UTMASTG
  kFence = 0x3c6,        // FENCE.VIEW.ASYNC
  kWait = 0x82e,         // ACQBULK
  kLaunch = 0x82d,       // PREEXIT
  kLocalLoad = 0x983,    // LDL
  kLocalStore = 0x387,   // STL
};

using Histogram = std::map<std::uint32_t, int>;

inline int count(const Histogram& histogram, Opcode opcode) {
  const auto found = histogram.find(static_cast<std::uint32_t>(opcode));
  return found == histogram.end() ? 0 : found->second;
}

/// Reads a little-endian number of an ELF file.
template <class Number>
Number number_at(const std::string& file, std::size_t at) {
  Number number;
  if (at > file.size() || file.size() - at < sizeof(Number)) {
    throw std::runtime_error("cubin: ends early");
  }
  std::memcpy(&number, file.data() + at, sizeof(Number));
  return number;
}

/// Name of the function -> its instructions, counted.
/// \throws std::runtime_error if the cubin is no 64-bit ELF file.
inline std::map<std::string, Histogram> instructions_of(const std::string& cubin) {
  if (cubin.substr(0, 5) !=
      "\x7f"
      "ELF\x02") {
    throw std::runtime_error("cubin: not a 64-bit ELF file");
  }
  const auto sections = number_at<std::uint64_t>(cubin, 0x28);
  const auto size = number_at<std::uint16_t>(cubin, 0x3a);
  const auto sections_count = number_at<std::uint16_t>(cubin, 0x3c);
  const auto names_index = number_at<std::uint16_t>(cubin, 0x3e);
  const auto names =
      number_at<std::uint64_t>(cubin, sections + std::size_t{names_index} * size + 24);
  std::map<std::string, Histogram> functions;
  for (std::size_t i = 0; i < sections_count; ++i) {
    const std::size_t header = sections + i * size;
    const auto name_at = names + number_at<std::uint32_t>(cubin, header);
    const std::string name = cubin.substr(name_at, cubin.find('\0', name_at) - name_at);
    if (!name.starts_with(".text.")) continue;
    const auto begin = number_at<std::uint64_t>(cubin, header + 24);
    const auto bytes = number_at<std::uint64_t>(cubin, header + 32);
    Histogram& code = functions[name.substr(6)];
    for (std::size_t at = begin; at + 16 <= begin + bytes; at += 16) {
      ++code[static_cast<std::uint32_t>(number_at<std::uint64_t>(cubin, at) & 0xfff)];
    }
  }
  return functions;
}

}  // namespace mhla::cuda::build

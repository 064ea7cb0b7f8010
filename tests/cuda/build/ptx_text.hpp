#pragma once

/// \file
/// The text of each entry function of a PTX file.

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace mhla::cuda::build {

/// Returns the place of the closing brace for the brace at `begin`, or the end of the text.
inline std::size_t end_of_braces(const std::string& text, std::size_t begin) {
  int open = 0;
  for (std::size_t at = begin; at < text.size(); ++at) {
    open += text[at] == '{' ? 1 : text[at] == '}' ? -1 : 0;
    if (open == 0) return at;
  }
  return text.size();
}

/// Returns the body of each entry function by name.
inline std::map<std::string, std::string> entries_of(const std::string& ptx) {
  std::map<std::string, std::string> entries;
  constexpr std::string_view kKeyword = ".entry ";
  for (std::size_t at = ptx.find(kKeyword); at != std::string::npos; at = ptx.find(kKeyword, at)) {
    at += kKeyword.size();
    const std::size_t name_end = ptx.find('(', at);
    const std::size_t begin = ptx.find('{', at);
    if (name_end == std::string::npos || begin == std::string::npos) break;
    const std::size_t end = end_of_braces(ptx, begin);
    entries[ptx.substr(at, name_end - at)] = ptx.substr(begin, end - begin);
    at = end;
  }
  return entries;
}

/// Counts the occurrences of an instruction by its first words.
inline int count(const std::string& text, std::string_view instruction) {
  int found = 0;
  for (std::size_t at = text.find(instruction); at != std::string::npos;
       at = text.find(instruction, at + instruction.size())) {
    ++found;
  }
  return found;
}

}  // namespace mhla::cuda::build

// usage_asked: for programs that take words and no flags; they would take `--help` for a file's name.
#pragma once

#include <cstdio>
#include <optional>
#include <string_view>

// Where a flag is given, main()'s exit code, after `usage: WORDS`: 0 for --help, 2 for any other.
inline std::optional<int> usage_asked(int argc, char** argv, const char* words) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with('-')) continue;
    const bool help = word == "--help" || word == "-h";
    std::fprintf(help ? stdout : stderr, "usage: %s\n", words);
    return help ? 0 : 2;
  }
  return std::nullopt;
}

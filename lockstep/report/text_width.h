// How many columns UTF-8 text takes on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

// Columns: 2 for wide characters (Chinese, Japanese, Korean), 0 for combining and control
// characters, 1 for a byte that is not UTF-8. Independent of the process's locale. Thread-safe.
size_t display_width(std::string_view text);

// The longest beginning of `text` that takes at most `columns` columns.
std::string_view fit_to_width(std::string_view text, size_t columns);

// Whether it has a Chinese character. What is said about texts of people is in Chinese where they
// or their labels have one, and else in English, whatever the locale.
bool has_chinese(std::string_view text);

}  // namespace lockstep

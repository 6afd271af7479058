// The number of columns that UTF-8 text takes on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::inline v0 {

// Wide characters (Chinese, Japanese, Korean) count 2 columns, combining and control characters 0,
// a byte that is not UTF-8 1. Independent of the process's locale.
// Thread-safety: any thread.
size_t display_width(std::string_view text);

// The longest beginning of `text` that takes at most `columns` columns.
std::string_view fit_to_width(std::string_view text, size_t columns);

// Whether `text` has a Chinese character. Messages about a user's texts are in Chinese if the texts
// or their labels have one, and otherwise in English, whatever the locale.
bool has_chinese(std::string_view text);

}  // namespace lockstep::inline v0

// The words of an option's value, such as "ps=1,restarts=3".
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace lockstep::inline v0::launch {

// At least one word; empty ones too, which the caller refuses.
inline std::vector<std::string> words_at_commas(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

}  // namespace lockstep::inline v0::launch

#include "lockstep/cli/usage.h"

#include <algorithm>

#include "lockstep/core/text.h"

namespace lockstep::inline v0::cli {

std::string suggestion(const std::string& word, const std::vector<std::string>& candidates) {
  size_t best = std::max<size_t>(2, word.size() / 3) + 1;
  std::string closest;
  for (const std::string& candidate : candidates) {
    const bool begun = word.size() > 4 && candidate.starts_with(word);
    const size_t distance = begun ? 1 : edit_distance(word, candidate);
    if (distance < best) {
      best = distance;
      closest = candidate;
    }
  }
  return closest.empty() ? "" : " (did you mean " + closest + "?)";
}

bool asks_for_help(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(),
                     [](const std::string& word) { return word == "--help" || word == "-h"; });
}

std::string wrapped(const std::string& text, size_t at, size_t indent, size_t width) {
  std::string out;
  size_t column = at;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t line_end = std::min(text.find('\n', begin), text.size());
    // An indented line is a command line, to be copied whole.
    const bool as_it_is = begin < text.size() && text[begin] == ' ';
    bool first = true;
    while (begin < line_end) {
      size_t end = as_it_is ? line_end : std::min(text.find(' ', begin), line_end);
      // A list that is longer than a line breaks behind a comma.
      if (const size_t room = std::max(width, indent + 1) - indent;
          !as_it_is && end - begin > room) {
        const size_t comma = text.rfind(',', begin + room - 1);
        if (comma != std::string::npos && comma > begin) end = comma + 1;
      }
      const std::string word = text.substr(begin, end - begin);
      if (!first && column + 1 + word.size() > width) {
        out += "\n" + std::string(indent, ' ');
        column = indent;
      } else if (!first) {
        out += ' ';
        ++column;
      }
      first = false;
      out += word;
      column += word.size();
      begin = std::min(text.find_first_not_of(' ', end), line_end);
    }
    begin = line_end + 1;
    if (begin > text.size()) break;
    out += "\n" + std::string(begin < text.size() && text[begin] != '\n' ? indent : 0, ' ');
    column = indent;
  }
  return out;
}

}  // namespace lockstep::inline v0::cli

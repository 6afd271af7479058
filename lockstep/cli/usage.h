// The common part of the commands: the error of a wrong command line, and suggestions for mistyped
// words.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::cli {

// The command line is wrong; the message is one line. The program prints it and exits with 2.
class UsageError : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// " (did you mean B?)" for the candidate that is closest to `word`, or "" when none is close.
std::string suggestion(const std::string& word, const std::vector<std::string>& candidates);

// Whether the words of a command line ask for help, wherever. A command asks this before it parses,
// since "--help" alone is no mistake where options are required.
bool asks_for_help(const std::vector<std::string>& words);

// Wraps `text` into lines of at most `width` columns, all but the first behind `indent` spaces; the
// first begins at column `at`. Existing lines stay lines, and those that begin with a space are
// unchanged, because they are command lines to be copied whole.
std::string wrapped(const std::string& text, size_t at, size_t indent, size_t width);

}  // namespace lockstep::inline v0::cli

// What the commands have in common: the error of a wrong command line, and suggestions for mistyped
// words.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::cli {

// The command line is wrong; the message is one line. The program prints it and exits with 2.
class UsageError : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// " (did you mean B?)" for the candidate that is closest to `word`, or "" when none is close.
std::string suggestion(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace lockstep::cli

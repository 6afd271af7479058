// The prefix of each line of a rank's output.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/launch/launch_options.h"

namespace lockstep::inline v0::launch {

struct RankNames {
  std::string role;
  int rank = 0;
  int local_rank = 0;
};

// Fills a template in torchrun's way (Python's string.Template.safe_substitute): ${role_name},
// ${rank} and ${local_rank}, with or without braces, become the rank's own, "$$" becomes "$", and
// anything else stays. Pure.
std::string filled_template(std::string_view text, const RankNames& names);

// The prefix that `options` select; options.prefix_template takes precedence. Pure.
std::string line_prefix(const LaunchOptions& options, const RankNames& names, bool of_stderr);

}  // namespace lockstep::inline v0::launch

// `lockstep completion`: the script by which a shell completes lockstep's command lines.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cli/option_table.h"

namespace lockstep::inline v0::cli {

enum class Shell { kBash, kZsh, kFish };

// The script. Pure.
std::string completion_script(Shell shell, const std::vector<OptionTable>& tables);

int completion_command(const std::vector<std::string>& arguments);
OptionTable completion_table();
std::string completion_help();

}  // namespace lockstep::inline v0::cli

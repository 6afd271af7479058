// `lockstep man`: man pages made of the commands' help.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cli/option_table.h"

namespace lockstep::inline v0::cli {

// The name of a command's page: "lockstep-train" of "lockstep train".
std::string page_name(const std::string& command);

// The page of a command, in the macros of man(7). `summary` stands beside its name; `others` are the
// pages to look at next. Pure.
std::string man_page(const OptionTable& table, const std::string& summary,
                     const std::vector<std::string>& others);

// The page of `lockstep` itself.
std::string overview_page();

int manual_command(const std::vector<std::string>& arguments);
OptionTable manual_table();
std::string manual_help();

}  // namespace lockstep::inline v0::cli

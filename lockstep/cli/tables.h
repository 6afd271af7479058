// The option tables of all commands, those of the other programs included.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cli/option_table.h"

namespace lockstep::inline v0::cli {

struct AllTables {
  std::vector<OptionTable> tables;  // in the order of `lockstep --help`; words behind their command
  std::vector<std::string> left_out;  // a line for each command whose program is not there
};

// Asks each program for its tables, which takes some seconds with libtorch.
// Throws: Error where a program does not answer as it should, or within two minutes.
AllTables all_tables();

}  // namespace lockstep::inline v0::cli

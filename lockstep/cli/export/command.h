// `lockstep export`: writes a checkpoint's model as an ONNX, pt2 or TorchScript file, by a Python that has torch.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cli/option_table.h"

namespace lockstep::inline v0::cli {

// Starts Python in place of this program; returns only where it cannot.
// Throws: UsageError for a wrong flag; InvalidArgument where no Python fits, in one line that says which were looked at;
// SystemError.
int export_command(const std::vector<std::string>& arguments);

std::string export_help();
OptionTable export_table();

}  // namespace lockstep::inline v0::cli

// What `lockstep compare --programs` needs to be there before its first program starts.
#pragma once

#include <filesystem>
#include <memory>

#include "lockstep/cli/engine/compare/programs.h"
#include "lockstep/train/run_claim.h"

namespace lockstep::engine {

// Sees that the data, the vocabulary, the model and the programs are there and that the output can
// be written. Fills in what was left open: the data (built-in sentences, made in the output's
// folder) and the threads. Gives the claim on the output's folder, which goes again if nothing is written. Throws
// InvalidArgument, DataError of one line.
[[nodiscard]] std::unique_ptr<RunClaim> check_programs_input(MethodsArguments& arguments);

// The `lockstep` command of this installation.
std::filesystem::path lockstep_program();

}  // namespace lockstep::engine

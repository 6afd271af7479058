// Files of Python's torch.save, read without running any of their code.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep {

struct PtFile {
  Safetensors contents;               // the tensors, and the numbers and texts beside them
  std::vector<std::string> left_out;  // what else is there, such as "optimizer"
  std::string found_in;  // where the state dict was, such as "state_dict"; "": the root
};

// Maps the file as read_safetensors() does. The tensors are as they were saved: views and shared
// storages included, so that they need not be contiguous and may share memory. Which files are
// understood is said in pt_contents.h. Safe on hostile files: no pickle code is run, and it takes
// no more memory than some hundred megabytes beside the map. With `expected`, the whole file is
// compared first. Throws CheckpointError of one line that names the file, and what is refused in
// it.
PtFile read_pt(const std::filesystem::path& path,
               const std::optional<FileSum>& expected = std::nullopt);

}  // namespace lockstep

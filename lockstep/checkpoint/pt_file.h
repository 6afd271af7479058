// Files of Python's torch.save, read without running any of their code.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The contents that read_pt() reads from a file.
struct PtFile {
  Safetensors contents;               // the tensors, and the numbers and texts beside them
  std::vector<std::string> left_out;  // other entries, such as "optimizer"
  std::string found_in;  // where the state dict was, such as "state_dict"; "": the root
};

// Maps the file as read_safetensors() does. The tensors are as they were saved, including views and
// shared storages: they need not be contiguous and may share memory. pt_contents.h describes the
// supported files. Safe on hostile files: no pickle code is run, and it takes no more than some
// hundred megabytes beside the map. With `expected`, the whole file is compared first.
// Throws: a one-line CheckpointError that names the file and the refused object.
LOCKSTEP_API PtFile read_pt(const std::filesystem::path& path,
                            const std::optional<FileSum>& expected = std::nullopt);

}  // namespace lockstep::inline v0

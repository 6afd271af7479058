// The contents of a file of torch.save(state_dict, path), as data. Pure: no tensors, and no pickle
// code is run; the bytes may be hostile.
//
// Format: a zip archive of stored members, NAME/data.pkl and the bytes of each storage as
// NAME/data/KEY (PyTorch's torch/serialization.py and torch/_utils.py, 1.6 to 2.13). Supported:
// dicts (also OrderedDict) of tensors and nn.Parameters, in views of shared storages, with numbers,
// text, lists and the like beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// A tensor, within its storage.
struct PtTensor {
  std::string name;
  std::string dtype;           // safetensors' names: "F32", ...; also "C128"
  uint64_t storage_begin = 0;  // byte of the file where its storage begins
  uint64_t storage_size = 0;   // in elements of `dtype`
  uint64_t offset = 0;         // in elements, like the strides
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// The contents that parse_pt() finds in a file.
struct PtContents {
  std::vector<PtTensor> tensors;                // by name
  std::map<std::string, std::string> metadata;  // numbers and short text found beside them
  std::vector<std::string> left_out;            // names of other entries, such as "optimizer"
  std::string found_in;  // the key of the dict with the tensors, such as "state_dict"; "": the root
};

// True if the bytes begin like a file of torch.save: zip, or the form before PyTorch 1.6.
LOCKSTEP_API bool looks_like_pt(std::span<const std::byte> bytes);

// Finds the state dict: at the root, or under "state_dict", "model_state_dict", "model", "module",
// "net" or "weights", or else under the only key whose value is a dict of tensors. Every tensor
// lies within its storage, and every storage lies within the bytes and has its CRC-32; the tensors'
// sizes together are at most 16 times the file's, plus 64 MiB (expanded tensors).
// Throws: a one-line CheckpointError that begins with `file`; it names an object that is not data.
LOCKSTEP_API PtContents parse_pt(std::span<const std::byte> bytes, const std::string& file);

}  // namespace lockstep::inline v0

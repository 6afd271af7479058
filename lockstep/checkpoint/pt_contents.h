// What a file of torch.save(state_dict, path) holds, as data. Pure: no tensors, and no pickle code
// is run; on bytes that may be hostile.
//
// Format: a zip archive of stored members, NAME/data.pkl and the bytes of each storage as
// NAME/data/KEY (PyTorch's torch/serialization.py and torch/_utils.py, 1.6 to 2.13). Understood:
// dicts (also OrderedDict) of tensors and nn.Parameters, in views of shared storages; numbers,
// text, lists and the like beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

// A tensor, within its storage.
struct PtTensor {
  std::string name;
  std::string dtype;           // safetensors' words: "F32", ...; "C128" besides
  uint64_t storage_begin = 0;  // byte of the file where its storage begins
  uint64_t storage_size = 0;   // in elements of `dtype`
  uint64_t offset = 0;         // in elements, as the strides
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

struct PtContents {
  std::vector<PtTensor> tensors;                // by name
  std::map<std::string, std::string> metadata;  // numbers and short text found beside them
  std::vector<std::string> left_out;            // names of what else is there, such as "optimizer"
  std::string found_in;  // the key whose dict has the tensors, such as "state_dict"; "": the root
};

// True if the bytes begin as a file of torch.save does: zip, or the form before PyTorch 1.6.
bool looks_like_pt(std::span<const std::byte> bytes);

// Finds the state dict: at the root, or under "state_dict", "model_state_dict", "model", "module",
// "net" or "weights", or else under the only key whose value is a dict of tensors. Every tensor lies
// within its storage and every storage within the bytes and has its CRC-32; the tensors' sizes
// together are at most 16 times the file's, plus 64 MiB (expanded tensors). Throws CheckpointError of
// one line that begins with `file`; for an object that is not data it names it.
PtContents parse_pt(std::span<const std::byte> bytes, const std::string& file);

}  // namespace lockstep

// The header of a safetensors file, as data. Pure: no files, no tensors.
//
// Format (https://huggingface.co/docs/safetensors): 8 bytes of header length, little-endian; the
// header, a JSON object that maps each tensor's name to {"dtype", "shape", "data_offsets": [begin,
// end]} and "__metadata__" to a map from string to string; then the data, to whose start the
// offsets count. Tensors fill the data without holes or overlaps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0 {

// No honest file needs a header that is longer and slower to parse; this is also the limit of the
// format's own library.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // the format's name: "F32", "BF16", "I64", "BOOL", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the data
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry>
      entries;  // in order of `begin`; empty tensors before the one that begins there
  std::map<std::string, std::string> metadata;
};

// Bytes of an element; 0 for a dtype that is unknown or not a whole number of bytes.
uint64_t safetensors_element_size(std::string_view dtype);

// Parses and checks the JSON of a header against the `data_bytes` that follow it: structure,
// duplicate names, dtypes, that each tensor's bytes are its shape times its dtype, bounds, overlaps
// and holes. Takes memory in proportion to `json`, not to the sizes that it claims.
// Throws: a one-line CheckpointError that begins with `file` and names the tensor.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::string& file);

// The JSON of a header, padded with spaces so that, after it and its 8 bytes of length, the data
// begins at a multiple of 64 bytes: a cache line, and a good alignment for vector instructions.
// Throws: InvalidArgument for text that is not UTF-8.
std::string format_safetensors_header(const SafetensorsHeader& header);

}  // namespace lockstep::inline v0

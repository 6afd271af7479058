// safetensors files: named tensors with a map of strings, compatible with Python's `safetensors`.
//
// Dtypes: float16/32/64, bfloat16, float8 (e4m3fn, e5m2), (u)int8/16/32/64, bool, complex64.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checksum.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0 {

// The strings beside a file's tensors, by key.
using Metadata = std::map<std::string, std::string>;

// The contents of a file.
struct LOCKSTEP_API Safetensors {
  NamedTensors tensors = {};  // by name
  Metadata metadata = {};

  // The tensor of that name, or nullptr.
  const at::Tensor* find(std::string_view name) const;
};

// Writes the tensors (any device and strides; unchanged; each in full even where they share memory)
// to a file that appears whole or not at all. Tensors with the largest elements come first, then by
// name, so that each tensor is aligned to its dtype and equal input gives equal bytes. Returns the
// file's checksum, which is computed while writing.
// Throws: InvalidArgument for a name that is used twice, empty or "__metadata__", and a dtype that
// the format lacks; SystemError when the file cannot be written.
LOCKSTEP_API FileSum write_safetensors(const std::filesystem::path& path,
                                       const NamedTensors& tensors, const Metadata& metadata = {});

// A tensor that is made when it is its turn to be written, and released afterwards.
struct TensorToCome {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::function<at::Tensor()> make;  // of that dtype and sizes
};
// The same file, with no more than one of the tensors in memory.
LOCKSTEP_API FileSum stream_safetensors(const std::filesystem::path& path,
                                        const std::vector<TensorToCome>& tensors,
                                        const Metadata& metadata = {});

// Maps the file: the tensors are its bytes, read when they are used, and keep the map alive. Writes
// to them change this process's memory and never the file. While they live the file may be
// replaced, as write_safetensors() does, but must not be changed in place (mapped_file.h). With
// `expected`, the whole file is read and compared first. Safe on hostile files: takes no more
// memory than a few times the file's size.
// Throws: a one-line CheckpointError that names the file and the tensor.
LOCKSTEP_API Safetensors read_safetensors(const std::filesystem::path& path,
                                          const std::optional<FileSum>& expected = std::nullopt);

// Sorts in the order of Safetensors::tensors.
LOCKSTEP_API void sort_by_name(NamedTensors* tensors);

}  // namespace lockstep::inline v0

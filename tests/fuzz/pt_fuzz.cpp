// Files of Python's torch.save: whole ones, and the pickle in them. Nothing of them may be run,
// whatever it says; that they are read at all goes without an interpreter.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "file_of.h"
#include "lockstep/checkpoint/internal/test_zip.h"
#include "lockstep/checkpoint/pt_contents.h"
#include "lockstep/checkpoint/pt_file.h"
#include "lockstep/core/errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const lockstep::FileOf file(data, size);
  try {
    for (const auto& [name, tensor] : lockstep::read_pt(file.path()).contents.tensors) {
      // An element at either end: strides and offsets stay within the storage.
      if (tensor.numel() == 0) continue;
      int64_t last = 0;
      for (int64_t dim = 0; dim < tensor.dim(); ++dim)
        last += (tensor.size(dim) - 1) * tensor.stride(dim);
      auto* bytes = static_cast<volatile uint8_t*>(tensor.mutable_data_ptr());
      const auto element = static_cast<int64_t>(tensor.element_size());
      bytes[0] = bytes[0] + 1;
      bytes[last * element + element - 1] = 1;
    }
  } catch (const lockstep::Error&) {
  }
  // The input as the pickle of an archive whose checksums are right.
  const std::string archive = lockstep::pt_archive({reinterpret_cast<const char*>(data), size});
  try {
    lockstep::parse_pt(std::as_bytes(std::span(archive)), "fuzz");
  } catch (const lockstep::Error&) {
  }
  return 0;
}

// A safetensors file to be written. Not a public header.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::inline v0 {

class AsideFile;

namespace internal {

// Holds the tensors themselves or, after snapshot(), the file's bytes: then the tensors may change.
// A file of a megabyte or more is written past the page cache (AsideFile::write_direct()), and its
// bytes pass through a processor once: they are copied and summed together, to the snapshot or,
// piece by piece, to the memory from which the disk takes them.
// Thread-safety: one thread at a time; a file that is only written may move to another thread.
class FileToWrite {
 public:
  // Throws as write_safetensors() for data that cannot be a file.
  FileToWrite(std::vector<TensorToCome> tensors, const Metadata& metadata);
  // Holds the tensors; copies nothing.
  explicit FileToWrite(const NamedTensors& tensors, const Metadata& metadata = {});

  size_t bytes() const { return bytes_; }  // of the file

  // Copies the tensors to `memory`, bytes() at a multiple of kDirectAlignment, which must not
  // change until write() has returned, and releases them. copy_from_device() copies those on
  // `later`, a device other than the host.
  void snapshot(std::byte* memory, at::Device later = at::kCPU);
  // Copies to pinned memory, in the order of this thread's current stream of the device: later work
  // of that stream may change the tensors. The host does not wait: the caller does, before write().
  void copy_from_device();

  // Writes everything to an empty file; does not commit. Throws the errors of that and of the
  // tensors' make().
  FileSum write(AsideFile& file) const;

 private:
  struct Coming {
    std::byte* to;
    at::Tensor tensor;
  };

  void copy_and_sum();
  void copy_on_all_threads(at::Device later);
  FileSum write_snapshot(AsideFile& file) const;
  FileSum write_tensors(AsideFile& file) const;

  std::string start_;                  // the header's length, and the header
  std::vector<TensorToCome> tensors_;  // in the file's order
  size_t bytes_ = 0;
  std::byte* snapshot_ = nullptr;
  std::vector<Coming> coming_;  // of a snapshot, from a device
  std::optional<FileSum> sum_;  // of the snapshot, where it is known
};

}  // namespace internal
}  // namespace lockstep::inline v0

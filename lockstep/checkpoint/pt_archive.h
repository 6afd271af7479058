// The zip archive of torch.save, by its members' names. Pure; the bytes may be hostile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/checkpoint/zip_directory.h"

namespace lockstep::inline v0 {

// Refers to the bytes and to `file`, which must outlive it.
class PtArchive {
 public:
  // Throws CheckpointError of one line that begins with `file` unless the bytes are an archive of
  // torch.save (not TorchScript's) from a little-endian machine.
  PtArchive(std::span<const std::byte> bytes, const std::string& file);

  // The bytes of a member, such as "data.pkl" or "data/0".
  // Throws: CheckpointError if it is missing, compressed, or has another CRC-32 than was written.
  std::string_view member(std::string_view name) const;
  // The offset in the archive of a result of member().
  uint64_t begin(std::string_view bytes) const;

  uint64_t size() const { return bytes_.size(); }
  const std::string& file() const { return file_; }
  // Throws CheckpointError with the file, then `what`.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  const ZipMember* find(std::string_view name) const;
  std::string_view text(const ZipMember& member) const;

  std::span<const std::byte> bytes_;
  const std::string& file_;
  ZipMembers members_;
  std::string_view prefix_;  // the prefix of all names: the archive's folder, and '/'
  bool without_crc_ = true;
};

}  // namespace lockstep::inline v0

// The list of files in a zip archive. Pure; the bytes may be hostile.
//
// Format: the part of PKWARE's APPNOTE.TXT 6.3 that torch.save uses: one disk, zip64 records,
// stored members. Compressed members are listed, but their bytes cannot be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::inline v0 {

struct ZipMember {
  uint64_t begin = 0;  // of its bytes, from the archive's start
  uint64_t size = 0;   // in the archive
  uint32_t crc32 = 0;  // of the uncompressed bytes
  bool stored = true;  // neither compressed nor encrypted
};

// By name; the names lie in the archive's bytes, which must outlive them.
using ZipMembers = std::map<std::string_view, ZipMember>;

// True if the bytes begin like a zip archive.
bool looks_like_zip(std::span<const std::byte> archive);

// Every member lies within the archive. Takes memory in proportion to the archive.
// Throws: a one-line CheckpointError that begins with `file`.
ZipMembers parse_zip_directory(std::span<const std::byte> archive, const std::string& file);

}  // namespace lockstep::inline v0

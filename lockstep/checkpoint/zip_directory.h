// The list of files in a zip archive. Pure; on bytes that may be hostile.
//
// Format: PKWARE's APPNOTE.TXT 6.3, of it what torch.save writes: one disk, zip64 records, members
// that are stored as they are. Compressed members are listed, with their bytes out of reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

struct ZipMember {
  uint64_t begin = 0;  // of its bytes, from the archive's start
  uint64_t size = 0;   // in the archive
  uint32_t crc32 = 0;  // of the bytes before any compression
  bool stored = true;  // neither compressed nor encrypted
};

// By name; the names lie in the archive's bytes, which must outlive them.
using ZipMembers = std::map<std::string_view, ZipMember>;

// True if the bytes begin as a zip archive does.
bool looks_like_zip(std::span<const std::byte> archive);

// Every member lies within the archive. Takes memory in proportion to the archive. Throws
// CheckpointError of one line that begins with `file`.
ZipMembers parse_zip_directory(std::span<const std::byte> archive, const std::string& file);

}  // namespace lockstep

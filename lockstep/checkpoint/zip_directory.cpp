#include "lockstep/checkpoint/zip_directory.h"

#include <algorithm>
#include <cstring>

#include "lockstep/checkpoint/shown_text.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kZip64End = 0x06064b50, kZip64Locator = 0x07064b50;
constexpr uint64_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22;
constexpr uint64_t kZip64EndSize = 56, kZip64LocatorSize = 20;
constexpr uint16_t kZip64Extra = 1;

// Reads little-endian numbers and text from the archive; every access is checked.
class ZipBytes {
 public:
  ZipBytes(std::span<const std::byte> bytes, const std::string& file)
      : bytes_(bytes), file_(file) {}

  uint64_t size() const { return bytes_.size(); }

  template <class Number>
  Number number(uint64_t at) const {
    Number value;
    std::memcpy(&value, part(at, sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view text(uint64_t at, uint64_t size) const {
    const auto bytes = part(at, size);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::span<const std::byte> part(uint64_t at, uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) fail("a record lies beyond its end");
    return bytes_.subspan(at, size);
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(file_ + ": " + what + "; the zip archive is truncated or damaged");
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& file_;
};

struct Central {
  uint64_t begin = 0, size = 0, members = 0;
};

// The end record is the last one, followed only by a comment of at most 64 KiB.
uint64_t find_end(const ZipBytes& zip) {
  constexpr uint64_t kLongestComment = 0xffff;
  if (zip.size() < kEndSize) zip.fail("it is too short");
  const uint64_t last = zip.size() - kEndSize;
  const uint64_t first = last - std::min(last, kLongestComment);
  for (uint64_t at = last + 1; at-- > first;) {
    if (zip.number<uint32_t>(at) == kEnd &&
        zip.number<uint16_t>(at + 20) == zip.size() - at - kEndSize)
      return at;
  }
  zip.fail("its list of members is missing");
}

Central find_central(const ZipBytes& zip) {
  const uint64_t end = find_end(zip);
  Central central{.begin = zip.number<uint32_t>(end + 16),
                  .size = zip.number<uint32_t>(end + 12),
                  .members = zip.number<uint16_t>(end + 10)};
  if (end >= kZip64LocatorSize && zip.number<uint32_t>(end - kZip64LocatorSize) == kZip64Locator) {
    const auto at = zip.number<uint64_t>(end - kZip64LocatorSize + 8);
    zip.part(at, kZip64EndSize);
    if (zip.number<uint32_t>(at) != kZip64End) zip.fail("its zip64 end record is missing");
    central = {.begin = zip.number<uint64_t>(at + 48),
               .size = zip.number<uint64_t>(at + 40),
               .members = zip.number<uint64_t>(at + 32)};
  }
  zip.part(central.begin, central.size);
  if (central.members > central.size / kCentralSize) zip.fail("its list of members is cut off");
  return central;
}

// Reads a member's sizes and offset, if they do not fit into 32 bits, from its extra field, in this
// order.
void read_zip64_extra(const ZipBytes& zip, uint64_t at, uint64_t size, uint64_t* full_size,
                      ZipMember* member) {
  constexpr uint64_t kMark = 0xffffffff;
  const uint64_t end = at + size;
  while (end - at >= 4) {
    const auto id = zip.number<uint16_t>(at);
    const uint64_t field_end = at + 4 + zip.number<uint16_t>(at + 2);
    if (field_end > end) zip.fail("an extra field is cut off");
    at += 4;
    if (id == kZip64Extra) {
      for (uint64_t* value : {full_size, &member->size, &member->begin}) {
        if (*value != kMark) continue;
        if (field_end - at < 8) zip.fail("a zip64 field is cut off");
        *value = zip.number<uint64_t>(at);
        at += 8;
      }
      return;
    }
    at = field_end;
  }
}

// Moves `member->begin` from the local header to the member's bytes.
void skip_local_header(const ZipBytes& zip, std::string_view name, ZipMember* member) {
  const uint64_t at = member->begin;
  zip.part(at, kLocalSize);
  const uint64_t name_size = zip.number<uint16_t>(at + 26), extra = zip.number<uint16_t>(at + 28);
  if (zip.number<uint32_t>(at) != kLocal || zip.text(at + kLocalSize, name_size) != name)
    zip.fail("member " + shown(name) + " is not where the list says");
  member->begin = at + kLocalSize + name_size + extra;
  zip.part(member->begin, member->size);
}

}  // namespace

bool looks_like_zip(std::span<const std::byte> archive) {
  uint32_t start = 0;
  if (archive.size() < sizeof start) return false;
  std::memcpy(&start, archive.data(), sizeof start);
  return start == kLocal || start == kEnd;
}

ZipMembers parse_zip_directory(std::span<const std::byte> archive, const std::string& file) {
  const ZipBytes zip(archive, file);
  const Central central = find_central(zip);
  const uint64_t end = central.begin + central.size;
  ZipMembers members;
  uint64_t at = central.begin;
  for (uint64_t i = 0; i < central.members; ++i) {
    if (end - at < kCentralSize || zip.number<uint32_t>(at) != kCentral)
      zip.fail("its list of members is cut off");
    constexpr uint16_t kEncrypted = 1;
    const auto flags = zip.number<uint16_t>(at + 8), method = zip.number<uint16_t>(at + 10);
    ZipMember member{.begin = zip.number<uint32_t>(at + 42),
                     .size = zip.number<uint32_t>(at + 20),
                     .crc32 = zip.number<uint32_t>(at + 16),
                     .stored = method == 0 && (flags & kEncrypted) == 0};
    uint64_t full_size = zip.number<uint32_t>(at + 24);
    const uint64_t name_size = zip.number<uint16_t>(at + 28);
    const uint64_t extra = zip.number<uint16_t>(at + 30), comment = zip.number<uint16_t>(at + 32);
    const uint64_t next = at + kCentralSize + name_size + extra + comment;
    if (next > end) zip.fail("its list of members is cut off");
    const std::string_view name = zip.text(at + kCentralSize, name_size);
    read_zip64_extra(zip, at + kCentralSize + name_size, extra, &full_size, &member);
    if (member.stored && full_size != member.size)
      zip.fail("member " + shown(name) + " has two sizes");
    skip_local_header(zip, name, &member);
    if (!members.emplace(name, member).second) zip.fail("two members are called " + shown(name));
    at = next;
  }
  return members;
}

}  // namespace lockstep::inline v0

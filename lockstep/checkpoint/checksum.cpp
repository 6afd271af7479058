#include "lockstep/checkpoint/checksum.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/stream_copy.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep::inline v0 {
namespace {

// The piece that Checksum::copy() handles at once: it stays in the first-level cache between sum
// and copy.
constexpr size_t kCopyPiece = 4096;

}  // namespace

struct Checksum::State {
  XXH3_state_t xxh3;  // has the alignment that XXH3 requires, and new respects
  uint64_t bytes = 0;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh3);
}

Checksum::~Checksum() = default;

void Checksum::update(const void* data, size_t size) {
  if (size == 0) return;
  XXH3_64bits_update(&state_->xxh3, data, size);
  state_->bytes += size;
}

void Checksum::copy(void* to, const void* data, size_t size, CopyTo to_where) {
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(data);
  while (size > 0) {
    // Fills up to a multiple of the piece, so that all later pieces begin at a cache line.
    const size_t room = kCopyPiece - reinterpret_cast<uintptr_t>(target) % kCopyPiece;
    const size_t piece = std::min(size, room);
    update(source, piece);
    if (to_where == CopyTo::kCaches)
      std::memcpy(target, source, piece);
    else
      stream_copy(target, source, piece);
    target += piece;
    source += piece;
    size -= piece;
  }
  if (to_where == CopyTo::kMemory) stream_fence();
}

void copy_past_caches(void* to, const void* from, size_t size) {
  if (size == 0) return;
  stream_copy(to, from, size);
  stream_fence();
}

FileSum Checksum::sum() const {
  return {state_->bytes, XXH3_64bits_digest(&state_->xxh3)};
}

FileSum checksum_of(const void* data, size_t size) {
  return {size, XXH3_64bits(data, size)};
}

std::string checksum_text(uint64_t xxh3) {
  std::string text(16, '0');
  for (size_t i = 16; i-- > 0; xxh3 >>= 4) text[i] = "0123456789abcdef"[xxh3 & 15];
  return text;
}

std::string format_checksums(const FileSums& sums) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const auto& [name, sum] : sums)
    files[name] = {{"bytes", sum.bytes}, {"xxh3", checksum_text(sum.xxh3)}};
  return nlohmann::ordered_json{{"algorithm", "XXH3-64"}, {"files", files}}.dump(2) + "\n";
}

FileSums parse_checksums(std::string_view json, const std::string& source) {
  FileSums sums;
  // Any text that format_checksums() would not write causes an exception of the library.
  try {
    const auto parsed = nlohmann::json::parse(json);
    if (parsed.at("algorithm") != "XXH3-64") {
      throw CheckpointError(source +
                            ": its checksums are not XXH3-64; it was written by a newer Lockstep");
    }
    for (const auto& [name, entry] :
         parsed.at("files").get_ref<const nlohmann::json::object_t&>()) {
      const auto& digits = entry.at("xxh3").get_ref<const std::string&>();
      FileSum sum{.bytes = entry.at("bytes").get<uint64_t>()};
      const char* end = digits.data() + digits.size();
      const auto read = std::from_chars(digits.data(), end, sum.xxh3, 16);
      if (digits.size() != 16 || read.ec != std::errc() || read.ptr != end ||
          !is_plain_file_name(name)) {
        throw CheckpointError(source + ": has an entry that is no checksum; it is damaged");
      }
      sums.emplace(name, sum);
    }
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError(source + ": is not a list of checksums; it is damaged");
  }
  return sums;
}

std::optional<FileSum> find_sum(const FileSums& sums, const std::string& name) {
  const auto found = sums.find(name);
  return found == sums.end() ? std::nullopt : std::optional(found->second);
}

void check_listed(const FileSums& sums, const std::string& name, const std::string& directory) {
  if (sums.empty() || sums.count(name) != 0) return;
  throw CheckpointError(directory + "/" + name +
                        ": is not listed in checksums.json; take it away, or the list");
}

void check_sum(const FileSum& found, const FileSum& recorded, const std::string& file) {
  if (found.bytes != recorded.bytes) {
    throw CheckpointError(file + ": has " + std::to_string(found.bytes) + " bytes, but " +
                          std::to_string(recorded.bytes) +
                          " were written; the file is damaged, use another checkpoint");
  }
  if (found.xxh3 != recorded.xxh3) {
    throw CheckpointError(file + ": its checksum is " + checksum_text(found.xxh3) + ", but " +
                          checksum_text(recorded.xxh3) +
                          " was written; the file is damaged, use another checkpoint");
  }
}

bool is_plain_file_name(std::string_view name) {
  constexpr size_t kLongest = 200;
  return !name.empty() && name.size() <= kLongest && name[0] != '.' &&
         std::none_of(name.begin(), name.end(), [](char c) {
           return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
         });
}

}  // namespace lockstep::inline v0

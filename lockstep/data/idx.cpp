#include "lockstep/data/idx.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/data/internal/packed_file.h"

namespace lockstep::inline v0::data {
namespace {

constexpr size_t kMaxDims = 4;
constexpr size_t kMaxHeader = 4 + 4 * kMaxDims;
constexpr unsigned char kUint8Type = 0x08;
constexpr const char* kGiveIdxFile = "give an idx file";

unsigned byte_at(std::span<const std::byte> bytes, size_t i) {
  return std::to_integer<unsigned>(bytes[i]);
}

// Receives the bytes of an idx file in pieces of any size: first the header, then values, which it
// keeps or only counts.
class IdxDecoder {
 public:
  // `ceiling` is the maximum number of bytes that the unpacked file can have.
  IdxDecoder(std::string_view name, uint64_t ceiling, bool packed, bool keep)
      : name_(name), ceiling_(ceiling), packed_(packed), keep_(keep) {}

  void feed(std::span<const std::byte> piece) {
    while (header_size_ < header_needed_ && !piece.empty()) {
      header_[header_size_++] = piece.front();
      piece = piece.subspan(1);
      if (header_size_ == 4) read_magic();
      if (header_size_ == header_needed_) read_dims();
    }
    if (piece.empty()) return;
    if (piece.size() > expected_ - seen_) trailing(seen_ + piece.size() - expected_);
    seen_ += piece.size();
    if (keep_) {
      const auto* first = reinterpret_cast<const uint8_t*>(piece.data());
      array_.values.insert(array_.values.end(), first, first + piece.size());
    }
  }

  IdxArray finish() {
    if (header_size_ < header_needed_) {
      refuse_file(name_, "truncated: ends in the header, after byte " +
                             std::to_string(header_size_) + " of " +
                             std::to_string(header_needed_) + kFetchAgain);
    }
    if (seen_ < expected_) truncated("has ", seen_);
    return std::move(array_);
  }

  // For a plain file of known length: values need not be fed.
  void skip_values(uint64_t count) {
    if (count > expected_) trailing(count - expected_);
    seen_ = count;
  }

 private:
  void read_magic() {
    const unsigned type = byte_at(header_, 2), rank = byte_at(header_, 3);
    if (byte_at(header_, 0) != 0 || byte_at(header_, 1) != 0) {
      refuse_file(
          name_,
          "not an idx file: byte 0 and 1 must be 0; give the idx files of an MNIST-like data set");
    }
    if (type != kUint8Type) {
      refuse_file(name_, "element type " + std::to_string(type) +
                             " at byte 2, expected 8 (uint8); convert the file to uint8");
    }
    if (rank < 1 || rank > kMaxDims) {
      refuse_file(name_, std::to_string(rank) + " dims at byte 3, expected 1 to " +
                             std::to_string(kMaxDims) +
                             "; give the idx files of an MNIST-like data set");
    }
    header_needed_ = 4 + 4 * rank;
  }

  void read_dims() {
    bool overflow = false;
    expected_ = 1;
    for (size_t at = 4; at < header_needed_; at += 4) {
      uint64_t dim = 0;
      for (size_t i = 0; i < 4; ++i) dim = dim << 8 | byte_at(header_, at + i);
      array_.dims.push_back(static_cast<int64_t>(dim));
      overflow |= __builtin_mul_overflow(expected_, dim, &expected_);
    }
    if (overflow) {
      refuse_file(name_, "the header at byte 4 promises " + dims_text(array_.dims) +
                             " values, more than any file holds" + kFetchAgain);
    }
    const uint64_t room = ceiling_ - std::min<uint64_t>(ceiling_, header_needed_);
    if (expected_ > room) truncated(packed_ ? "can hold at most " : "has ", room);
    // Trusts the header only up to an ordinary compression ratio; the vector grows for the rest.
    if (keep_) array_.values.reserve(std::min(expected_, room / 64 + (1 << 20)));
  }

  [[noreturn]] void truncated(const char* verb, uint64_t have) const {
    refuse_file(name_, "truncated: the header promises " + dims_text(array_.dims) + " = " +
                           std::to_string(expected_) + " bytes after byte " +
                           std::to_string(header_needed_) + ", the file " + verb +
                           std::to_string(have) + kFetchAgain);
  }
  [[noreturn]] void trailing(uint64_t extra) const {
    refuse_file(name_, std::to_string(extra) + " or more bytes after the last value, at byte " +
                           std::to_string(header_needed_ + expected_) + ": the header promises " +
                           dims_text(array_.dims) + kFetchAgain);
  }

  std::string_view name_;
  uint64_t ceiling_;
  bool packed_, keep_;
  std::array<std::byte, kMaxHeader> header_{};
  size_t header_size_ = 0, header_needed_ = 4;
  uint64_t expected_ = 0, seen_ = 0;
  IdxArray array_;
};

IdxArray decode(std::span<const std::byte> bytes, std::string_view name, bool keep) {
  if (is_gzip(bytes)) {
    IdxDecoder decoder(name, gzip_ceiling(bytes.size()), true, keep);
    gunzip(bytes, name, [&](std::span<const std::byte> piece) { decoder.feed(piece); });
    return decoder.finish();
  }
  IdxDecoder decoder(name, bytes.size(), false, keep);
  decoder.feed(bytes);
  return decoder.finish();
}

}  // namespace

std::string dims_text(std::span<const int64_t> dims) {
  std::string text;
  for (const int64_t dim : dims) {
    if (!text.empty()) text += 'x';
    text += std::to_string(dim);
  }
  return text;
}

IdxArray parse_idx(std::span<const std::byte> bytes, std::string_view name) {
  return decode(bytes, name, true);
}

IdxArray read_idx(const std::filesystem::path& path) {
  const OpenFile file = open_file(path, kGiveIdxFile);
  return decode(read_bytes(file, file.size, path.string()), path.string(), true);
}

std::vector<int64_t> check_idx(const std::filesystem::path& path) {
  const std::string name = path.string();
  const OpenFile file = open_file(path, kGiveIdxFile);
  const auto start = read_bytes(file, kMaxHeader, name);
  if (is_gzip(start)) return decode(read_bytes(file, file.size, name), name, false).dims;
  IdxDecoder decoder(name, file.size, false, false);
  const size_t header =
      start.size() < 4 ? start.size() : std::min(start.size(), 4 + 4 * size_t{byte_at(start, 3)});
  decoder.feed(std::span(start).first(header));
  if (header >= 8) decoder.skip_values(file.size - header);
  return decoder.finish().dims;
}

void write_idx(const std::filesystem::path& path, std::span<const int64_t> dims,
               std::span<const uint8_t> values) {
  if (dims.empty() || dims.size() > kMaxDims) {
    throw InvalidArgument("write_idx: " + std::to_string(dims.size()) +
                          " dims; an idx file has 1 to 4");
  }
  std::array<std::byte, kMaxHeader> header{};
  header[2] = std::byte{kUint8Type};
  header[3] = static_cast<std::byte>(dims.size());
  uint64_t count = 1;
  bool fits = true;
  for (size_t i = 0; i < dims.size(); ++i) {
    fits = fits && dims[i] >= 0 && dims[i] <= std::numeric_limits<uint32_t>::max() &&
           !__builtin_mul_overflow(count, static_cast<uint64_t>(dims[i]), &count);
    for (size_t b = 0; b < 4; ++b)
      header[4 + 4 * i + b] = static_cast<std::byte>(dims[i] >> (24 - 8 * b));
  }
  if (!fits || count != values.size()) {
    throw InvalidArgument("write_idx: dims " + dims_text(dims) + " do not fit " +
                          std::to_string(values.size()) + " values");
  }
  AsideFile file(path);
  file.write(header.data(), 4 + 4 * dims.size());
  file.write(values.data(), values.size());
  file.commit();
}

}  // namespace lockstep::inline v0::data

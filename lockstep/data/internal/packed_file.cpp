#include "lockstep/data/internal/packed_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data {
namespace {

struct InflateEnd {
  void operator()(z_stream* stream) const { ::inflateEnd(stream); }
};

// Fills `bytes` from offset `from`; returns the number of bytes read.
size_t read_at(const OpenFile& file, uint64_t from, std::span<std::byte> bytes,
               std::string_view name) {
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t n = ::pread(file.fd.get(), bytes.data() + have, bytes.size() - have,
                              static_cast<off_t>(from + have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      refuse_file(name, "cannot be read: " + std::string(std::strerror(errno)) + " at byte " +
                            std::to_string(from + have));
    }
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  return have;
}

}  // namespace

void refuse_file(std::string_view name, const std::string& what) {
  throw DataError(std::string(name) + ": " + what);
}

bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

uint64_t gzip_ceiling(uint64_t packed) {
  uint64_t ceiling;
  return __builtin_mul_overflow(packed, uint64_t{1032}, &ceiling)
             ? std::numeric_limits<uint64_t>::max()
             : ceiling;
}

void gunzip(std::span<const std::byte> packed, std::string_view name, const ByteSink& sink) {
  z_stream stream{};
  if (::inflateInit2(&stream, 15 + 16) != Z_OK)
    throw Error("zlib: cannot start inflating (out of memory)");
  const std::unique_ptr<z_stream, InflateEnd> guard(&stream);
  std::vector<std::byte> piece(256 * 1024);
  size_t position = 0;
  int status = Z_OK;
  while (true) {
    const size_t slice = std::min<size_t>(packed.size() - position, 1 << 30);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data() + position));
    stream.avail_in = static_cast<uInt>(slice);
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    status = ::inflate(&stream, Z_NO_FLUSH);
    position += slice - stream.avail_in;
    const size_t produced = piece.size() - stream.avail_out;
    if (status == Z_MEM_ERROR) throw Error("zlib: out of memory");
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
      refuse_file(name, "corrupt gzip data near byte " + std::to_string(position) + " (" +
                            (stream.msg ? stream.msg : "unknown error") + ")" + kFetchAgain);
    }
    sink(std::span(piece).first(produced));
    if (status == Z_STREAM_END) {
      if (position == packed.size()) return;
      ::inflateReset(&stream);  // another member follows
    } else if (produced == 0 && position == packed.size()) {
      refuse_file(name, "truncated: the gzip data end at byte " + std::to_string(position) +
                            ", in the middle" + kFetchAgain);
    }
  }
}

OpenFile open_file(const std::filesystem::path& path, const std::string& wanted) {
  OpenFile file{UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK))};
  if (!file.fd) {
    refuse_file(path.string(),
                std::string("cannot be opened: ") + std::strerror(errno) + "; check the path");
  }
  struct stat info{};
  if (::fstat(file.fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    refuse_file(path.string(), "not a regular file; " + wanted);
  }
  file.size = static_cast<uint64_t>(info.st_size);
  return file;
}

std::vector<std::byte> read_bytes(const OpenFile& file, uint64_t count, std::string_view name) {
  std::vector<std::byte> bytes(std::min(count, file.size));
  bytes.resize(read_at(file, 0, bytes, name));
  return bytes;
}

void read_unpacked(const std::filesystem::path& path, const std::string& wanted,
                   const ByteSink& sink) {
  const std::string name = path.string();
  const OpenFile file = open_file(path, wanted);
  if (is_gzip(read_bytes(file, 2, name))) {
    gunzip(read_bytes(file, file.size, name), name, sink);
    return;
  }
  std::vector<std::byte> piece(1 << 20);
  for (uint64_t from = 0;;) {
    const size_t n = read_at(file, from, piece, name);
    if (n == 0) return;
    sink(std::span(piece).first(n));
    from += n;
  }
}

}  // namespace lockstep::inline v0::data

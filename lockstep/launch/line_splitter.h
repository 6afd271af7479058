// LineSplitter: cuts a stream of bytes into lines and progress updates. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0::launch {

struct Piece {
  std::string text;  // with its end: "\n", "\r", or none when forced
  enum class End {
    kLine,      // "\n"
    kProgress,  // "\r": the next piece overwrites this one on a terminal
    kForced,    // neither: the line grew too long, or the stream ended
  } end = End::kLine;

  bool operator==(const Piece&) const = default;
};

class LineSplitter {
 public:
  // A line longer than `limit` is cut there.
  explicit LineSplitter(size_t limit = size_t{1} << 20) : limit_(limit) {}

  // The pieces that `bytes` complete. All pieces, with those of flush(), are the stream, byte for
  // byte.
  std::vector<Piece> feed(std::string_view bytes);
  // The unfinished line when the stream ends, or now.
  std::vector<Piece> flush();
  bool pending() const { return !rest_.empty(); }

 private:
  size_t limit_;
  std::string rest_;
};

}  // namespace lockstep::inline v0::launch

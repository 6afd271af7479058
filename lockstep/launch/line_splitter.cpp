#include "lockstep/launch/line_splitter.h"

#include <algorithm>
#include <utility>

namespace lockstep::inline v0::launch {

std::vector<Piece> LineSplitter::feed(std::string_view bytes) {
  std::vector<Piece> pieces;
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\r\n");
    const size_t room = limit_ - rest_.size();
    if (std::min(end, bytes.size()) > room) {
      rest_ += bytes.substr(0, room);
      bytes.remove_prefix(room);
      pieces.push_back({std::exchange(rest_, {}), Piece::End::kForced});
      continue;
    }
    if (end == std::string_view::npos) {
      rest_ += bytes;
      break;
    }
    const bool crlf = bytes.substr(end, 2) == "\r\n";
    const bool line = crlf || bytes[end] == '\n';
    const size_t size = end + (crlf ? 2 : 1);
    rest_ += bytes.substr(0, size);
    bytes.remove_prefix(size);
    pieces.push_back({std::exchange(rest_, {}), line ? Piece::End::kLine : Piece::End::kProgress});
  }
  return pieces;
}

std::vector<Piece> LineSplitter::flush() {
  if (rest_.empty()) return {};
  return {{std::exchange(rest_, {}), Piece::End::kForced}};
}

}  // namespace lockstep::inline v0::launch

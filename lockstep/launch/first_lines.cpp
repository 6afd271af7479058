#include "lockstep/launch/first_lines.h"

#include <iterator>
#include <utility>

namespace lockstep::inline v0::launch {

std::vector<Piece> FirstLines::pass(const std::vector<Piece>& pieces, Time now) {
  std::vector<Piece> show;
  for (const Piece& piece : pieces) {
    if (left_ > 0 && piece.end == Piece::End::kLine) {
      --left_;
      if (held_.empty()) held_since_ = now;
      held_.push_back(piece);
      continue;
    }
    left_ = 0;
    std::vector<Piece> before = release();
    show.insert(show.end(), std::make_move_iterator(before.begin()),
                std::make_move_iterator(before.end()));
    show.push_back(piece);
  }
  return show;
}

std::optional<FirstLines::Time> FirstLines::next_time() const {
  if (held_.empty()) return std::nullopt;
  return held_since_ + kHold;
}

std::vector<Piece> FirstLines::on_time(Time now) {
  if (held_.empty() || now < held_since_ + kHold) return {};
  return release();
}

std::vector<Piece> FirstLines::release() {
  const std::string text = held_text();
  std::vector<Piece> pieces = std::exchange(held_, {});
  if (!text.empty() && other_.ends_with(text)) return {};
  shown_ += text;
  return pieces;
}

std::string FirstLines::held_text() const {
  std::string text;
  for (const Piece& piece : held_) text += piece.text;
  return text;
}

}  // namespace lockstep::inline v0::launch

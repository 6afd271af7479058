#include "lockstep/comm/engines/piped/pinned_path.h"

#include <c10/core/StreamGuard.h>

#include <optional>
#include <utility>

#include "lockstep/comm/backend/device_engine.h"
#include "lockstep/device/graph.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"

namespace lockstep::inline v0::piped {

// One call of the engine.
class PinnedPath::PinnedPart final : public Part {
 public:
  PinnedPart(PinnedPath& path, Piece piece, const Call& whole)
      : path_(path), piece_(std::move(piece)), after_(whole.after) {
    piece_.call.record = whole.record;
    piece_.call.note.text = whole.note.text;
    piece_.call.after = nullptr;
  }

  bool begin() override {
    if (down_) return true;
    const bool counts = !is_message(piece_.call);
    if (counts && path_.pinned_ > 0 && path_.pinned_ + piece_.bytes > path_.at_most_) return false;
    memory_ = device::empty_pinned({piece_.bytes}, at::kByte, path_.device_);
    device::Event down(path_.device_);
    if (!piece_.down.empty() || piece_.call.op == Op::kBarrier) {
      const c10::StreamGuard on_down(path_.down_);
      if (after_) static_cast<const device::Event*>(after_.get())->block(path_.down_);
      for (const Span& span : piece_.down)
        memory_.narrow(0, span.host, span.bytes)
            .copy_(path_.on_device(span), /*non_blocking=*/true);
      down.record(path_.down_);
    }
    down_ = std::move(down);  // set last, since an exception in between leaves the copy undone
    if (counts) path_.pinned_ += piece_.bytes;
    return true;
  }

  bool ready() override { return !device::captures_here() && down_ && down_->reached(); }

  const Call& next() override {
    auto* const memory = static_cast<std::byte*>(memory_.mutable_data_ptr());
    if (piece_.input >= 0) piece_.call.input = memory + piece_.input;
    if (piece_.output >= 0) piece_.call.output = memory + piece_.output;
    return piece_.call;
  }

  std::shared_ptr<const device::Event> advance() override {
    {
      const c10::StreamGuard on_up(path_.up_);
      // Waits for the copy down, and for earlier users of the memory.
      down_->block(path_.up_);
      if (after_) static_cast<const device::Event*>(after_.get())->block(path_.up_);
      for (const Span& span : piece_.up)
        path_.on_device(span).copy_(memory_.narrow(0, span.host, span.bytes),
                                    /*non_blocking=*/true);
    }
    auto up = std::make_shared<device::Event>(path_.device_);
    up->record(path_.up_);
    path_.leaving_.push_back({std::move(memory_), up, is_message(piece_.call) ? 0 : piece_.bytes});
    return up;
  }

  // Pieces follow each other through the engine.
  bool alone() const override { return false; }

 private:
  PinnedPath& path_;
  Piece piece_;
  std::shared_ptr<void> after_;
  at::Tensor memory_;
  std::optional<device::Event> down_;  // the end of the copy to the host; nullopt: not started
};

PinnedPath::PinnedPath(c10::Device device, int rank, int size, int64_t slot_bytes, int64_t at_most)
    : device_(device),
      rank_(rank),
      size_(size),
      slot_bytes_(slot_bytes),
      at_most_(at_most),
      down_(device::side_stream(device)),
      up_(device::side_stream(device)) {}

Parts PinnedPath::parts_of(const Call& call) {
  Parts parts;
  for (Piece& piece : cut(call, rank_, size_, slot_bytes_))
    parts.push_back(std::make_unique<PinnedPart>(*this, std::move(piece), call));
  return parts;
}

at::Tensor PinnedPath::on_device(const Span& span) const {
  return bytes_at(span.device, span.bytes, device_);
}

bool PinnedPath::give_back() {
  while (!leaving_.empty() && !device::captures_here() && leaving_.front().up->reached()) {
    pinned_ -= leaving_.front().counted;
    leaving_.pop_front();
  }
  return !leaving_.empty();
}

void PinnedPath::block(const c10::Stream& stream) {
  device::order(down_, stream);
  device::order(up_, stream);
}

bool PinnedPath::through(const Backend&) {
  if (device::captures_here()) return false;
  device::Event down(device_), up(device_);
  down.record(down_);
  up.record(up_);
  return down.reached() && up.reached();
}

}  // namespace lockstep::inline v0::piped

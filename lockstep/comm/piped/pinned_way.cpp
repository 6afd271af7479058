#include "lockstep/comm/piped/pinned_way.h"

#include <c10/core/StreamGuard.h>

#include <optional>
#include <utility>

#include "lockstep/comm/device_engine.h"
#include "lockstep/device/graph.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"

namespace lockstep::piped {

// One call of the engine.
class PinnedWay::PinnedPart final : public Part {
 public:
  PinnedPart(PinnedWay& way, Piece piece, const Call& whole)
      : way_(way), piece_(std::move(piece)), after_(whole.after) {
    piece_.call.record = whole.record;
    piece_.call.note.text = whole.note.text;
    piece_.call.after = nullptr;
  }

  bool begin() override {
    if (down_) return true;
    const bool counts = !is_message(piece_.call);
    if (counts && way_.pinned_ > 0 && way_.pinned_ + piece_.bytes > way_.at_most_) return false;
    memory_ = device::empty_pinned({piece_.bytes}, at::kByte, way_.device_);
    device::Event down(way_.device_);
    if (!piece_.down.empty() || piece_.call.op == Op::kBarrier) {
      const c10::StreamGuard on_down(way_.down_);
      if (after_) static_cast<const device::Event*>(after_.get())->block(way_.down_);
      for (const Span& span : piece_.down)
        memory_.narrow(0, span.host, span.bytes).copy_(way_.on_device(span), /*non_blocking=*/true);
      down.record(way_.down_);
    }
    down_ = std::move(down);  // set last, since an exception on the way leaves the copy undone
    if (counts) way_.pinned_ += piece_.bytes;
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
      const c10::StreamGuard on_up(way_.up_);
      // Waits for the copy down, and for earlier users of the memory.
      down_->block(way_.up_);
      if (after_) static_cast<const device::Event*>(after_.get())->block(way_.up_);
      for (const Span& span : piece_.up)
        way_.on_device(span).copy_(memory_.narrow(0, span.host, span.bytes),
                                   /*non_blocking=*/true);
    }
    auto up = std::make_shared<device::Event>(way_.device_);
    up->record(way_.up_);
    way_.leaving_.push_back({std::move(memory_), up, is_message(piece_.call) ? 0 : piece_.bytes});
    return up;
  }

  // Pieces follow each other through the engine.
  bool alone() const override { return false; }

 private:
  PinnedWay& way_;
  Piece piece_;
  std::shared_ptr<void> after_;
  at::Tensor memory_;
  std::optional<device::Event> down_;  // the end of the copy to the host; nullopt: not started
};

PinnedWay::PinnedWay(c10::Device device, int rank, int size, int64_t slot_bytes, int64_t at_most)
    : device_(device),
      rank_(rank),
      size_(size),
      slot_bytes_(slot_bytes),
      at_most_(at_most),
      down_(device::side_stream(device)),
      up_(device::side_stream(device)) {}

Parts PinnedWay::parts_of(const Call& call) {
  Parts parts;
  for (Piece& piece : cut(call, rank_, size_, slot_bytes_))
    parts.push_back(std::make_unique<PinnedPart>(*this, std::move(piece), call));
  return parts;
}

at::Tensor PinnedWay::on_device(const Span& span) const {
  return bytes_at(span.device, span.bytes, device_);
}

bool PinnedWay::give_back() {
  while (!leaving_.empty() && !device::captures_here() && leaving_.front().up->reached()) {
    pinned_ -= leaving_.front().counted;
    leaving_.pop_front();
  }
  return !leaving_.empty();
}

void PinnedWay::block(const c10::Stream& stream) {
  device::order(down_, stream);
  device::order(up_, stream);
}

bool PinnedWay::through(const Backend&) {
  if (device::captures_here()) return false;
  device::Event down(device_), up(device_);
  down.record(down_);
  up.record(up_);
  return down.reached() && up.reached();
}

}  // namespace lockstep::piped

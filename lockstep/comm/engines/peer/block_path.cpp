#include "lockstep/comm/engines/peer/block_path.h"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/backend/device_engine.h"
#include "lockstep/comm/engines/peer/layout.h"
#include "lockstep/comm/engines/peer/reduce.h"
#include "lockstep/comm/engines/peer/retired.h"
#include "lockstep/comm/engines/piped/pieces.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/event.h"
#include "lockstep/device/graph.h"
#include "lockstep/device/stream.h"

namespace lockstep::inline v0::peer {

// One window of a collective; for an uneven all_to_all, all windows one after another.
class BlockPath::BlockPart final : public piped::Part {
 public:
  BlockPart(BlockPath& path, const Call& call, const Layout& layout, int64_t window)
      : path_(path), call_(call), layout_(layout), window_(window), windows_(layout.windows) {
    uneven_ = call.op == Op::kAllToAll && !call.uniform;
    const int64_t bytes = std::min(layout.step, call.count) * width();
    by_shares_ = call.op == Op::kAllReduce && path.size_ > 2 && bytes > path.whole_up_to_;
    meeting_.sequence = call.sequence;
    meeting_.record = call.record;  // the ranks compare it
    meeting_.dtype = at::kLong;
    if (uneven_) {
      meeting_.op = Op::kAllReduce;
      meeting_.reduce = ReduceOp::kMax;
      meeting_.count = 1;
      meeting_.output = reinterpret_cast<std::byte*>(&windows_);
      meeting_.input = meeting_.output;
    } else if (call.op == Op::kAllReduce && path.blocks_->symmetric().any()) {
      places_.resize(static_cast<size_t>(path.size_));
      Place& own = places_[static_cast<size_t>(path.rank_)];
      own = path.blocks_->symmetric().find(call.input, call.count * width());
      meeting_.op = Op::kAllGather;
      meeting_.counts.assign(places_.size(), sizeof(Place) / sizeof(int64_t));
      meeting_.uniform = true;
      meeting_.output = reinterpret_cast<std::byte*>(places_.data());
      meeting_.input = reinterpret_cast<std::byte*>(&own);
    }
  }

  bool begin() override {
    // All ranks have given their devices the reads of this slot: they did so before they reached
    // the window after that.
    if (path_.uneven_ || (path_.next_ >= kSlots && path_.met_ < path_.next_ - kSlots + 2))
      return false;
    give();
    path_.uneven_ = uneven_;
    return true;
  }

  bool ready() override { return true; }
  const Call& next() override { return meeting_; }
  bool alone() const override { return true; }

  std::shared_ptr<const device::Event> advance() override {
    const c10::StreamGuard guard(path_.out_);
    if (summed_) {
      path_.blocks_->wait_for_all(Mark::kSummed, number_, path_.out_);
      take_shares();
    } else {
      ++path_.met_;
      wait_for_caller(path_.out_);  // the caller may have used the memory before
      path_.blocks_->wait_for_all(Mark::kGiven, number_, path_.out_);
      // The caller owns its symmetric memory again when all ranks have summed.
      for (const Place& place : places_) by_shares_ |= place.id >= 0;
      if (by_shares_) {
        sum_share();
        path_.blocks_->record(Mark::kSummed, number_, path_.out_);
        summed_ = true;
        return nullptr;
      }
      take();
    }
    path_.blocks_->record_taken(number_, path_.out_);
    if (uneven_ && ++window_ < windows_) {
      give();
      return nullptr;
    }
    if (uneven_) path_.uneven_ = false;
    auto done = std::make_shared<device::Event>(path_.device_);
    done->record(path_.out_);
    return done;
  }

 private:
  int64_t width() const { return static_cast<int64_t>(c10::elementSize(call_.dtype)); }

  void wait_for_caller(const c10::Stream& stream) const {
    if (call_.after) static_cast<const device::Event*>(call_.after.get())->block(stream);
  }

  at::Tensor elements(std::byte* data, int64_t count) const {
    return elements_at(data, count, call_.dtype, path_.device_);
  }
  at::Tensor in_slot(int rank, int64_t offset, int64_t count) const {
    return elements(path_.blocks_->slot(rank, number_) + offset, count);
  }

  // The place of a rank's part of the reduction.
  at::Tensor given(int rank, int64_t offset, int64_t count) const {
    const Place place = places_.empty() ? Place() : places_[static_cast<size_t>(rank)];
    if (place.id < 0) return in_slot(rank, offset, count);
    std::byte* const window =
        path_.blocks_->symmetric().at(rank, place) + window_ * layout_.step * width();
    return elements(window + offset, count);
  }
  std::vector<at::Tensor> given_by_all(int64_t offset, int64_t count) const {
    std::vector<at::Tensor> all;
    for (int r = 0; r < path_.size_; ++r) all.push_back(given(r, offset, count));
    return all;
  }
  bool lies_in_symmetric() const {
    return !places_.empty() && places_[static_cast<size_t>(path_.rank_)].id >= 0;
  }

  void give() {
    number_ = path_.next_++;
    const c10::StreamGuard guard(path_.in_);
    wait_for_caller(path_.in_);
    if (number_ >= kSlots) path_.blocks_->wait_for_all(Mark::kTaken, number_, path_.in_);
    std::byte* const slot = path_.blocks_->slot(path_.rank_, number_);
    if (!lies_in_symmetric()) {
      for (const Gift& gift : gifts(call_, layout_, window_, path_.rank_))
        bytes_at(slot + gift.slot, gift.bytes, path_.device_)
            .copy_(bytes_at(const_cast<std::byte*>(gift.from), gift.bytes, path_.device_),
                   /*non_blocking=*/true);
    }
    path_.blocks_->record(Mark::kGiven, number_, path_.in_);
  }

  void take() const {
    for (const Take& one : takes(call_, layout_, window_, path_.rank_)) {
      const at::Tensor to = elements(one.to, one.elements);
      if (one.from < 0)
        reduce_into(to, given_by_all(one.slot, one.elements), call_.reduce);
      else
        to.copy_(in_slot(one.from, one.slot, one.elements), /*non_blocking=*/true);
    }
  }

  void sum_share() const {
    for (const Take& one : takes(call_, layout_, window_, path_.rank_)) {
      const Share own = share(one.elements, path_.rank_, path_.size_);
      if (own.elements == 0) continue;
      const int64_t at = one.slot + own.begin * width();
      // The other ranks do not read this rank's share of its slot before it posts.
      reduce_into(in_slot(path_.rank_, at, own.elements), given_by_all(at, own.elements),
                  call_.reduce);
    }
  }

  void take_shares() const {
    for (const Take& one : takes(call_, layout_, window_, path_.rank_)) {
      for (int r = 0; r < path_.size_; ++r) {
        const Share its = share(one.elements, r, path_.size_);
        if (its.elements == 0) continue;
        elements(one.to + its.begin * width(), its.elements)
            .copy_(in_slot(r, one.slot + its.begin * width(), its.elements), /*non_blocking=*/true);
      }
    }
  }

  BlockPath& path_;
  Call call_;
  Layout layout_;
  int64_t window_;   // the window within the call
  int64_t windows_;  // for an uneven call: the windows of all ranks, known once they have met
  bool uneven_ = false;
  bool by_shares_ = false;
  bool summed_ = false;
  int64_t number_ = -1;        // the window's number among those of all calls
  std::vector<Place> places_;  // the places of all ranks' inputs, for an all_reduce that has them
  Call meeting_;
};

BlockPath::BlockPath(std::unique_ptr<Blocks> blocks, c10::Device device, int rank, int size,
                     int64_t whole_up_to)
    : blocks_(std::move(blocks)),
      pinned_(device, rank, size, /*slot_bytes=*/0, /*at_most=*/0),
      device_(device),
      rank_(rank),
      size_(size),
      whole_up_to_(whole_up_to),
      in_(device::side_stream(device)),
      out_(device::side_stream(device)) {}

piped::Parts BlockPath::parts_of(const Call& call) {
  free_what_is_closed();
  if (call.op == Op::kBarrier || piped::is_message(call)) return pinned_.parts_of(call);
  const Layout layout = lay_out(call, size_, blocks_->slot_bytes());
  const bool uneven = call.op == Op::kAllToAll && !call.uniform;
  piped::Parts parts;
  for (int64_t window = 0; window < (uneven ? 1 : layout.windows); ++window)
    parts.push_back(std::make_unique<BlockPart>(*this, call, layout, window));
  return parts;
}

void BlockPath::block(const c10::Stream& stream) {
  device::order(in_, stream);
  device::order(out_, stream);
  pinned_.block(stream);
}

bool BlockPath::through(const Backend& host) {
  if (device::captures_here()) return false;
  device::Event in(device_), out(device_);
  in.record(in_);
  out.record(out_);
  if (!in.reached() || !out.reached() || !pinned_.through(host)) return false;
  blocks_->leave();
  // The other ranks may still read from this process's memory.
  return blocks_->others_have_taken(host, next_);
}

void BlockPath::check(const Backend& host) const {
  if (const auto rank = blocks_->lost_rank(host))
    throw PeerLost("rank " + std::to_string(*rank) +
                       " is gone before its device gave what this one waits for; what " +
                       device_.str() + " was given after that does not run: end this process",
                   *rank);
}

}  // namespace lockstep::inline v0::peer

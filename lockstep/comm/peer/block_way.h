// BlockWay: through blocks of the devices' memory (blocks.h). Each window of a collective is copied
// into this rank's block, the engine of the host says when all ranks have come so far, and streams
// take it from there, behind the other ranks' events. Not a public header.
//
// The ranks' devices follow each other by events, and their hosts by the engine's calls, each of
// which says of every rank what it has given its device: an event has been recorded before anybody
// waits for it. A window's slot is written again once all ranks have said so of a window that came
// after it, and behind the events of all that have taken from it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>

#include "lockstep/comm/peer/blocks.h"
#include "lockstep/comm/piped/part.h"
#include "lockstep/comm/piped/pinned_way.h"

namespace lockstep::peer {

class BlockWay final : public piped::Way {
 public:
  // An all_reduce whose windows have up to `whole_up_to` bytes is summed up by every rank whole;
  // others by shares.
  BlockWay(std::unique_ptr<Blocks> blocks, c10::Device device, int rank, int size,
           int64_t whole_up_to);

  piped::Parts parts_of(const Call& call) override;
  bool give_back() override { return pinned_.give_back(); }
  void block(const c10::Stream& stream) override;
  bool through(const Backend& host) override;
  void check(const Backend& host) const override;
  SymmetricMemory allocate_symmetric(int64_t bytes) override {
    return blocks_->symmetric().allocate(bytes);
  }

 private:
  class BlockPart;

  std::unique_ptr<Blocks> blocks_;
  piped::PinnedWay pinned_;  // of messages and barriers
  c10::Device device_;
  int rank_;
  int size_;
  int64_t whole_up_to_;
  c10::Stream in_;
  c10::Stream out_;
  int64_t next_ = 0;     // window
  int64_t met_ = 0;      // windows that all ranks have given
  bool uneven_ = false;  // a call is under way that may have more windows than this rank gives
};

}  // namespace lockstep::peer

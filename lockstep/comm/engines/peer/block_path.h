// BlockPath: moves data through blocks of the devices' memory (blocks.h). Each window of a
// collective is copied into this rank's block, the host's engine says when all ranks have done so,
// and streams take it from there, behind the other ranks' events. Not a public header.
//
// The ranks' devices are ordered by events, and their hosts by the engine's calls, each of which
// carries what every rank has given its device: an event has been recorded before any rank waits
// for it. A window's slot is written again once all ranks have reported a later window, and behind
// the events of all ranks that have read it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>

#include "lockstep/comm/engines/peer/blocks.h"
#include "lockstep/comm/engines/piped/part.h"
#include "lockstep/comm/engines/piped/pinned_path.h"

namespace lockstep::inline v0::peer {

class BlockPath final : public piped::DataPath {
 public:
  // In an all_reduce whose windows have up to `whole_up_to` bytes every rank sums whole windows; in
  // a larger one each rank sums its share.
  BlockPath(std::unique_ptr<Blocks> blocks, c10::Device device, int rank, int size,
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
  piped::PinnedPath pinned_;  // for messages and barriers
  c10::Device device_;
  int rank_;
  int size_;
  int64_t whole_up_to_;
  c10::Stream in_;
  c10::Stream out_;
  int64_t next_ = 0;     // window
  int64_t met_ = 0;      // windows that all ranks have given to their devices
  bool uneven_ = false;  // a pending call may have more windows than this rank gives
};

}  // namespace lockstep::inline v0::peer

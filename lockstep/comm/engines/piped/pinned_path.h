// PinnedPath: copies down to pinned memory on one stream, lets the host's engine carry the data,
// and copies up on another stream. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "lockstep/comm/engines/piped/part.h"
#include "lockstep/comm/engines/piped/pieces.h"

namespace lockstep::inline v0::piped {

class PinnedPath final : public DataPath {
 public:
  // Collectives longer than `slot_bytes` run in pieces (cut()) and use `at_most` bytes of pinned
  // memory at once; a single longer piece runs by itself.
  PinnedPath(c10::Device device, int rank, int size, int64_t slot_bytes, int64_t at_most);

  Parts parts_of(const Call& call) override;
  bool give_back() override;
  void block(const c10::Stream& stream) override;
  bool through(const Backend& host) override;

 private:
  class PinnedPart;
  struct Leaving {
    at::Tensor memory;
    std::shared_ptr<const device::Event> up;
    int64_t counted = 0;
  };

  at::Tensor on_device(const Span& span) const;

  c10::Device device_;
  int rank_;
  int size_;
  int64_t slot_bytes_;
  int64_t at_most_;
  c10::Stream down_;
  c10::Stream up_;
  std::deque<Leaving> leaving_;  // being copied up
  int64_t pinned_ = 0;           // bytes that collectives use
};

}  // namespace lockstep::inline v0::piped

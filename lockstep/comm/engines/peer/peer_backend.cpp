#include "lockstep/comm/engines/peer/peer_backend.h"

#include <algorithm>
#include <utility>

#include "lockstep/comm/engines/peer/block_path.h"
#include "lockstep/comm/engines/peer/blocks.h"
#include "lockstep/comm/engines/peer/layout.h"
#include "lockstep/comm/engines/piped/piped_backend.h"

namespace lockstep::inline v0 {

std::unique_ptr<Backend> make_peer_backend(std::unique_ptr<Backend> host, c10::Device device,
                                           int rank, int size, Deadline deadline,
                                           const PeerSizes& sizes) {
  const int64_t slot_bytes =
      std::max<int64_t>(sizes.slot_bytes / peer::kAlign, size) * peer::kAlign;
  auto blocks = peer::Blocks::meet(*host, device, rank, size, slot_bytes, deadline);
  auto path =
      std::make_unique<peer::BlockPath>(std::move(blocks), device, rank, size, sizes.whole_up_to);
  Capabilities capabilities = piped::on_device(host->capabilities(), "peer", device);
  return piped::make_piped_backend(std::move(host), std::move(path), std::move(capabilities), rank);
}

}  // namespace lockstep::inline v0

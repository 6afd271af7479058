#include "lockstep/comm/engines/staged/staged_backend.h"

#include <string>
#include <utility>

#include "lockstep/comm/engines/piped/pinned_path.h"
#include "lockstep/comm/engines/piped/piped_backend.h"

namespace lockstep::inline v0 {
namespace {

// Whether pieces of a call may share its number, and their sums equal those of the whole call: true
// for the shared-memory engines, which count calls themselves and add in rank order.
bool takes_pieces(const Backend& host) {
  const std::string& name = host.capabilities().backend;
  return name == "local" || name == "shm";
}

}  // namespace

std::unique_ptr<Backend> make_staged_backend(std::unique_ptr<Backend> host, c10::Device device,
                                             int rank, int size, const StagedSizes& sizes) {
  const Capabilities& of_host = host->capabilities();
  Capabilities capabilities = piped::on_device(of_host, "staged:" + of_host.backend, device);
  auto path = std::make_unique<piped::PinnedPath>(device, rank, size,
                                                  takes_pieces(*host) ? sizes.slot_bytes : 0,
                                                  sizes.slot_bytes * sizes.slots);
  return piped::make_piped_backend(std::move(host), std::move(path), std::move(capabilities), rank);
}

}  // namespace lockstep::inline v0

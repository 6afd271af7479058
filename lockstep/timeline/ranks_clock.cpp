#include "lockstep/timeline/ranks_clock.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "lockstep/comm/backend/types.h"
#include "lockstep/trace/trace_file.h"

namespace lockstep::inline v0::timeline {
namespace {

constexpr int kTrips = 32;
constexpr int kTag = 0x7469;  // apart from a program's own messages; MPI allows up to 32,767

// A number of the clock that this process reads: of the kernel, and of its name space of times.
// Local ranks do not tell of it, since a launcher may leave them out.
int64_t this_clock() {
  std::string name;
  if (std::ifstream file("/proc/sys/kernel/random/boot_id"); !std::getline(file, name))
    name = trace::host_name();
  std::error_code ignored;
  name += std::filesystem::read_symlink("/proc/self/ns/time", ignored).string();
  return static_cast<int64_t>(fingerprint(name));
}

}  // namespace

ClockOffset measure_clock(Communicator& comm, int asker, int other,
                          const std::function<int64_t()>& clock) {
  const at::Tensor time = at::zeros({1}, at::kLong);
  if (comm.rank() != asker) {
    for (int i = 0; i < kTrips; ++i) {
      comm.recv(time, asker, kTag);
      time.fill_(clock());
      comm.send(time, asker, kTag);
    }
    return {};
  }
  std::vector<PingPong> trips;
  for (int i = 0; i < kTrips; ++i) {
    PingPong& trip = trips.emplace_back();
    trip.asked_ns = clock();
    comm.send(time, other, kTag);
    comm.recv(time, other, kTag);
    trip.answered_ns = clock();
    trip.their_ns = time.item<int64_t>();
  }
  return clock_offset(std::move(trips));
}

ClockOffset clock_of_rank(Communicator& comm) {
  const at::Tensor hosts = comm.all_gather(at::full({1}, this_clock(), at::kLong));
  const auto* host = hosts.const_data_ptr<int64_t>();
  std::map<int64_t, int> first;  // rank of each clock
  for (int rank = 0; rank < comm.size(); ++rank) first.emplace(host[rank], rank);
  // The offset and its error by rank, of the first ranks of hosts.
  const at::Tensor offsets = at::zeros({comm.size(), 2}, at::kLong);
  auto* all = offsets.mutable_data_ptr<int64_t>();
  for (const auto& [clock, rank] : first) {
    if (rank == 0 || (comm.rank() != 0 && comm.rank() != rank)) continue;
    const ClockOffset offset = measure_clock(comm, 0, rank);
    all[2 * rank] = offset.ns;
    all[2 * rank + 1] = offset.error_ns;
  }
  comm.broadcast(offsets, 0);
  const int own = first.at(host[comm.rank()]);
  return {.ns = all[2 * own], .error_ns = all[2 * own + 1]};
}

}  // namespace lockstep::inline v0::timeline

// AgentOptions: the options of an agent (agent.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/core/secret.h"
#include "lockstep/rpc/device_map.h"

namespace lockstep::inline v0::rpc {

struct LOCKSTEP_API AgentOptions {
  std::string name = {};  // for init(comm): "worker<rank>" where empty
  int workers = 4;        // threads that serve calls, besides the one that receives
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);  // of a call without its own
  // Limits for each peer: beyond them a call waits for room.
  size_t calls_in_flight = size_t{1} << 20;
  size_t queued_bytes = size_t{1} << 30;  // of calls that were not sent yet
  // A process that is silent for this long loses its references.
  std::chrono::nanoseconds lease = std::chrono::seconds(30);
  // The address at which this process is reached over TCP: a numeric address of its own. Beyond
  // loopback every connection proves the job's secret as well, but traffic is not encrypted.
  std::string listen = "127.0.0.1";
  // The names of all participants, where they are known: shutdown() waits for them. init(comm)
  // fills it.
  std::vector<std::string> world = {};
  // The job's secret; otherwise LOCKSTEP_SECRET_FD, LOCKSTEP_SECRET_FILE or LOCKSTEP_SECRET.
  std::optional<Secret> secret = {};
  // By peer. Calls to the process's own name need none: there every device maps to itself.
  std::map<std::string, DeviceMap> device_maps = {};

  // {{at::Device("cuda:0"), at::Device("cuda:1")}}: tensors of this process's cuda:0 arrive on the
  // peer's cuda:1, and tensors on cuda:1 in its answers arrive here on cuda:0; gradients of
  // distributed autograd use the same map. init() throws InvalidArgument for a device that does not
  // exist, is the CPU, or is mapped twice. init(comm) also throws it, on all ranks, where no rank
  // has the name or that rank lacks the device.
  void set_device_map(const std::string& peer, DeviceMap map) {
    device_maps.insert_or_assign(peer, std::move(map));
  }
};

// A pending call, for diagnostics: of this process, or of another one that it serves.
struct PendingCall {
  bool incoming = false;
  std::string peer, function;
  double seconds = 0;
};

}  // namespace lockstep::inline v0::rpc
